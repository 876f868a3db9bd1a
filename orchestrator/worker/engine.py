"""From an attempt to a DeepSpeed engine: process group, model, parameter groups, optimizer, learning rate."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import Any

import deepspeed
import numpy as np
import torch
import torch._dynamo  # before zero.Init: it patches tensor constructors whose signatures dynamo inspects on import
import torch.distributed
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups as deepspeed_groups
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from orchestrator.config.schema import Precision, RunConfig
from orchestrator.models.build import build_model, enable_recompute
from orchestrator.models.initialization import initialize_parameters
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.lr_schedule import learning_rate
from orchestrator.worker.operators import operators_to_build, unlink_shared_buffer
from orchestrator.worker.progress import say

TORCH_DTYPES = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


def start_distributed(attempt: WorkerAttempt) -> None:
    """Bind this process to its device and join the process group, in which no collective may take longer than configured."""
    to_build = operators_to_build(attempt.config)
    if to_build:
        say(f"building DeepSpeed's operators for this machine, once, about a minute each: {', '.join(to_build)}")
    get_accelerator().set_device(attempt.local_rank)
    timeout = datetime.timedelta(minutes=attempt.config.communication.timeout_minutes)
    deepspeed.init_distributed(timeout=timeout, verbose=False)
    # DeepSpeed trains in a copy of the world group, and would make it itself with torch's own limit instead of ours.
    deepspeed_groups._WORLD_GROUP = torch.distributed.new_group(timeout=timeout)
    torch.distributed.barrier()
    unlink_shared_buffer()


def build_engine(attempt: WorkerAttempt, spec: ModelSpec) -> Any:
    """The engine with freshly initialised weights, the same whatever the layout and the ZeRO stage."""
    config = attempt.config
    model = _build_model(attempt, spec)
    initialize_parameters(model, spec, seed=config.seed)
    enable_recompute(model, config.activation_checkpointing.policy)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=parameter_groups(model),
        config=attempt.ds_config,
        lr_scheduler=lr_scheduler_factory(config),
        dist_init_required=False,
    )
    # Last, so that dropout does not depend on what building the model and the optimizer drew.
    seed_random_states(config.seed, data_rank=attempt.layout.coordinate(attempt.rank).data)
    return engine


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices and embeddings, which decay, and the rest (norms and biases), which does not.

    The first group takes the optimizer's own weight decay.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decaying = [parameter for parameter in parameters if _num_dimensions(parameter) >= 2]
    others = [parameter for parameter in parameters if _num_dimensions(parameter) < 2]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def lr_scheduler_factory(config: RunConfig) -> Callable[[Optimizer], LambdaLR]:
    """What makes the scheduler once DeepSpeed has made the optimizer from its configuration.

    DeepSpeed moves the scheduler on after every step that changed the weights, so steps that fp16 skips do not use up
    learning rate.
    """
    peak = config.optimizer.lr

    def factor(step: int) -> float:
        rate = learning_rate(step, peak=peak, schedule=config.lr_scheduler, max_steps=config.training.max_steps)
        return rate / peak if peak > 0 else 1.0

    return lambda optimizer: LambdaLR(optimizer, factor)


def seed_random_states(seed: int, *, data_rank: int) -> None:
    """Seed every generator. Data-parallel ranks draw different dropout masks, ranks that share a batch the same."""
    own_seed = int(np.random.SeedSequence([seed, data_rank]).generate_state(1)[0])
    random.seed(own_seed)
    np.random.seed(own_seed)
    torch.manual_seed(own_seed)


def _build_model(attempt: WorkerAttempt, spec: ModelSpec) -> nn.Module:
    dtype = TORCH_DTYPES[attempt.config.precision.dtype]
    if attempt.config.zero.stage == 3:
        return build_model(spec, dtype=dtype, construction=deepspeed.zero.Init(config_dict_or_path=attempt.ds_config))
    with torch.device(get_accelerator().current_device_name()):
        return build_model(spec, dtype=dtype)


def _num_dimensions(parameter: nn.Parameter) -> int:
    """Dimensions of the whole parameter; ZeRO-3 keeps an empty one in the module and the shape beside it."""
    return len(getattr(parameter, "ds_shape", parameter.shape))
