"""From an attempt to a DeepSpeed engine: process groups, model, parameter groups, optimizer, learning rate."""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from orchestrator.config.enums import PipelineSchedule, Precision, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.models.causal_lm import CausalLM
from orchestrator.models.initialization import seeded_weights
from orchestrator.models.layers import Fill, LayerShapes, Placement
from orchestrator.models.pipeline import DualPipeStages, PipelineStages
from orchestrator.models.recompute import Recompute
from orchestrator.models.shards import HfParameter
from orchestrator.planning.layout import Coordinate
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.gradient_norm import PlainGradientNorm, is_unwrapped, take_part_in_every_sum
from orchestrator.worker.loss import TokenLoss
from orchestrator.worker.lr_schedule import lr_scheduler_factory
from orchestrator.worker.muon import compiler_only_for_muon, matrices_of_layers, num_dimensions
from orchestrator.worker.operators import operators_to_build, unlink_shared_buffer
from orchestrator.worker.parallel_groups import ModelParallelUnit, ParallelGroups, group_timeout, parallel_groups
from orchestrator.worker.pretrained import pretrained_weights
from orchestrator.worker.progress import say
from orchestrator.worker.schedules import ENGINES

TORCH_DTYPES = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


def start_distributed(attempt: WorkerAttempt) -> None:
    """Bind this process to its device and join the process group, in which no collective may take longer than configured."""
    to_build = operators_to_build(attempt.config)
    if to_build:
        say(f"building DeepSpeed's operators for this machine, once, about a minute each: {', '.join(to_build)}")
    get_accelerator().set_device(attempt.local_rank)
    deepspeed.init_distributed(timeout=_timeout(attempt.config), verbose=False)
    torch.distributed.barrier()
    unlink_shared_buffer()


def build_engine(
    attempt: WorkerAttempt, spec: ModelSpec, *, fill: Fill | None = None, advanced: Callable[[], None] = lambda: None
) -> Any:
    """The engine with its first weights, seeded or pretrained, the same whatever the layout and the ZeRO stage.

    ``fill`` replaces those weights. ``advanced`` is called for each parameter: reading large ones may take long.

    ``engine.module.loss_fn`` is the loss of a micro-batch; ``engine.plain_gradient_norm`` is there where DeepSpeed keeps none.
    """
    config = attempt.config
    with group_timeout(_timeout(config)):
        sequence_parallel = config.parallelism.sequence_parallel
        groups = parallel_groups(attempt.layout, attempt.rank, spec, sequence_parallel=sequence_parallel)
        cut_by_tensors_only = groups.tensor.size > 1 and attempt.layout.pipeline_parallel_size == 1
        unit = ModelParallelUnit(groups) if cut_by_tensors_only else None
        first_weights = fill or _first_weights(attempt, spec, groups)

        def filled(parameter: HfParameter, values: Tensor) -> None:
            advanced()
            first_weights(parameter, values)

        model = _build_model(attempt, spec, groups, unit, filled)
        with matrices_of_layers(), compiler_only_for_muon(config.optimizer.type):
            engine, _, _, _ = deepspeed.initialize(
                model=model,
                model_parameters=parameter_groups(model),
                config=attempt.ds_config,
                lr_scheduler=lr_scheduler_factory(config),
                mpu=unit,
                dist_init_required=False,
            )
    if attempt.layout.pipeline_parallel_size > 1:
        engine.__class__ = ENGINES[config.parallelism.schedule]
        _excuse_frozen_tied_weights(model)
    whole_model = engine.mpu.get_model_parallel_group() if engine.mpu is not None else None
    take_part_in_every_sum(engine, whole_model)
    if is_unwrapped(engine):
        engine.plain_gradient_norm = PlainGradientNorm(engine, group=whole_model, tensor_rank=groups.tensor.rank)
    # Last, so that dropout does not depend on what building the model and the optimizer drew.
    _seed_dropout(config, attempt.layout.coordinate(attempt.rank))
    return engine


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices and embeddings, which decay, and the rest (norms and biases), which does not.

    The first group takes the optimizer's own weight decay.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decaying = [parameter for parameter in parameters if num_dimensions(parameter) >= 2]
    others = [parameter for parameter in parameters if num_dimensions(parameter) < 2]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _seed_dropout(config: RunConfig, own: Coordinate) -> None:
    """Seed every generator. Replicas and stages draw different dropout masks.

    Ranks that share the layers draw the same, for they hold the same activations between the regions; with sequence
    parallelism they hold different ones and draw different masks.
    """
    tensor = own.model if config.parallelism.sequence_parallel else 0
    seed = int(np.random.SeedSequence([config.seed, own.data, own.pipe, tensor]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _excuse_frozen_tied_weights(model: Any) -> None:
    """DeepSpeed asks a tied weight for the fp32 gradient that its bf16 optimizer gives to trained weights only."""
    for parameter in model.tied_modules.parameters():
        if not parameter.requires_grad:
            parameter._hp_grad = None


def _timeout(config: RunConfig) -> datetime.timedelta:
    return datetime.timedelta(minutes=config.communication.timeout_minutes)


def _build_model(
    attempt: WorkerAttempt, spec: ModelSpec, groups: ParallelGroups, unit: ModelParallelUnit | None, fill: Fill
) -> nn.Module:
    config = attempt.config
    policy = config.activation_checkpointing.policy
    shapes = LayerShapes(spec=spec, group=groups.tensor, recompute_attention=policy is RecomputePolicy.selective)
    placement = _placement(attempt, groups, unit, fill)
    recompute = Recompute.from_config(config.activation_checkpointing)
    loss = TokenLoss(
        group=groups.tensor,
        vocab_size=spec.vocab_size,
        label_smoothing=config.training.label_smoothing,
        softcap=shapes.family.logits_softcap(shapes.config),
    )
    layout = attempt.layout
    if layout.pipeline_parallel_size == 1:
        return CausalLM(shapes, placement, recompute, loss)
    stages = DualPipeStages if config.parallelism.schedule is PipelineSchedule.dual_pipe_v else PipelineStages
    topology = PipeModelDataParallelTopology(
        num_pp=layout.pipeline_parallel_size, num_mp=layout.tensor_parallel_size, num_dp=layout.data_parallel_size
    )
    boundaries = attempt.plan["partition"]["boundaries"]
    return stages(shapes, placement, recompute, boundaries=boundaries, topology=topology, loss=loss)


def _placement(attempt: WorkerAttempt, groups: ParallelGroups, unit: ModelParallelUnit | None, fill: Fill) -> Placement:
    config = attempt.config
    dtype = TORCH_DTYPES[config.precision.dtype]
    partition = None
    if config.zero.stage == 3:
        # Never entered: it would replace torch's constructors. Its group must be given: without, ranks that share layers
        # would get one another's parts. The unit only makes its batch arithmetic right. The format comes from the
        # configuration: one that is given is replaced by bf16 on a device without fp16, and files on NVMe would have it.
        zero = deepspeed.zero.Init(
            config_dict_or_path=attempt.ds_config, data_parallel_group=groups.data.process_group, mpu=unit
        )
        # What entering it would do too: torch's own linear saves a view of the gathered weight, and so keeps every weight of
        # the model on the device from the forward pass to the backward pass. DeepSpeed's saves the parameter.
        zero._enable_mem_efficient_linear()

        def partition(parameter: nn.Parameter) -> None:
            zero._convert_to_zero_parameters([parameter])

    return Placement(
        dtype=dtype,
        device=torch.device(get_accelerator().current_device_name()),
        fill=fill,
        frozen=[re.compile(pattern) for pattern in config.training.freeze],
        partition=partition,
    )


def _first_weights(attempt: WorkerAttempt, spec: ModelSpec, groups: ParallelGroups) -> Fill:
    """Where the first values of the parameters come from. A resumed run gets its own from the checkpoint afterwards."""
    folder = attempt.config.model.pretrained
    if folder is None or attempt.resume_tag is not None:
        return seeded_weights(spec, groups.tensor, seed=attempt.config.seed)
    return groups.data.read_once(pretrained_weights(Path(folder), spec, groups.tensor))
