"""Bytes of each component in each phase under the systems whose readings are published.

Activations, logits and working memory come from the planner's kernels, and DeepSpeed's states and buffers from its memory
model; Megatron-LM, FSDP and torch alone keep their states as written here. What a system keeps was found by reading it and the
published steady states; no number here was fitted to a peak, but FSDP's share of a unit's gradients that is there while its
activations still are (a quarter) was chosen among round shares with Galvatron's rows in view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from orchestrator.config.enums import OffloadDevice, Precision
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, optimizer_wrapper, resolve_settings
from orchestrator.planning.layers import layer_parameters
from orchestrator.planning.memory.activations import PassBytes
from orchestrator.planning.memory.buffers import CUBLAS_WORKSPACE_BYTES, reduce_bucket_bytes
from orchestrator.planning.memory.device import Phase, StageLoad, phase_components
from orchestrator.planning.memory.shape import RankShape, rank_shape
from orchestrator.units import MIB
from tests.benchmarks.published_memory import Case
from tests.benchmarks.published_rows import Row
from tests.unit.planning.configurations import run_config

Components = Mapping[Phase, Mapping[str, float]]

MEGATRON_WORKSPACE_BYTES = {"ampere": 68 * MIB, "hopper": 96 * MIB}
"""Megatron-LM's CI: ``CUBLAS_WORKSPACE_CONFIG=:4096:8`` (32 MiB) for two handles, and Transformer Engine's own 4 or 32 MiB."""
OPTIMIZER_BYTES = {"adam8bit": 2, "adamw8bit": 2, "adafactor": 0, "sgd": 0}
"""What optimizers other than Adam remember of a parameter; Adam 8."""
TEMPORARIES = 2
"""Tensors as large as the one that is updated that torch's AdamW makes."""
PUBLISHED_SETTINGS: Mapping[str, Mapping[str, int]] = {
    "bf16_master_weight": {"reduce_bucket_size": 50_000_000, "stage3_param_persistence_threshold": 0},
}
"""DeepSpeed settings that a source publishes beside its readings (part of its name -> what its JSON files set); the others are
DeepSpeed's defaults."""


def components_of(case: Case, coordinate: int) -> Components:
    """Components of the ranks of one stage."""
    match case.system:
        case "megatron":
            return _megatron(case, coordinate)
        case "fsdp":
            return _fsdp(case, coordinate)
        case "torch":
            return _torch(case, coordinate)
        case _:
            return _deepspeed(case, coordinate)


def _passes(case: Case, coordinate: int) -> tuple[float, float, float]:
    """Saved activations, logits and working memory of a stage."""
    stage = case.partition.stages[coordinate]
    sets = case.layer_sets(coordinate)
    inner = replace(stage, has_embedding=False, has_positions=False, has_final_norm=False, has_head=False)
    of_pass = PassBytes(case.model, case.passed)
    layers = float(of_pass.activations(inner, in_flight=1))
    ends = float(of_pass.activations(stage, in_flight=1)) - layers
    logits = float(of_pass.logits(stage))
    if case.system == "fsdp" and not _splits_vocabulary(case) and not case.passed.sequence_parallel:
        ends /= case.passed.tensor_parallel_size
    return layers * sets + ends, logits, float(of_pass.working(stage))


def _splits_vocabulary(case: Case) -> bool:
    """Whether FSDP's tensor-parallel ranks split embedding and head; else they run those data-parallel."""
    return case.row.flag("vocab_parallel") is True


def shape_of(case: Case, coordinate: int) -> RankShape:
    """Elements on a rank of a stage."""
    return rank_shape(
        case.model,
        [case.partition.stages[coordinate]],
        tensor_parallel_size=case.passed.tensor_parallel_size,
        persistence_threshold=0,
    )


def _remembered(case: Case) -> int:
    return OPTIMIZER_BYTES.get(case.row.text("optimizer"), 8)


def _megatron(case: Case, coordinate: int) -> Components:
    """Gradients accumulate in fp32 with bf16; with fp16 in fp16, and the step makes an fp32 copy that lasts until the next.

    Only the optimizer states are sharded, by the distributed optimizer (ZeRO-1). The embedding's bf16 gradient stays without
    gradient-accumulation fusion (the ``local`` implementation).
    """
    parameters = float(shape_of(case, coordinate).parameters)
    half = "fp16" in case.row.text("precision")
    sharders = case.data_parallel_size if case.row.whole("zero_stage") >= 1 else 1
    activations, logits, working = _passes(case, coordinate)
    hopper = any(name in case.row.text("gpu") for name in ("h100", "h200", "b200"))
    permanent = {
        "parameters": 2 * parameters,
        "gradients": (2 if half else 4) * parameters,
        "optimizer_states": (4 + _remembered(case)) * parameters / sharders,
        "workspace": float(MEGATRON_WORKSPACE_BYTES["hopper" if hopper else "ampere"]),
    }
    if case.row.note("impl") == "local":
        permanent["workspace"] += 2 * case.model.vocab_size // case.passed.tensor_parallel_size * case.model.hidden_size
    return {
        Phase.start: permanent,
        Phase.loss: {**permanent, "activations": activations, "logits": logits},
        Phase.backward: {**permanent, "activations": activations, "layer_working_memory": working},
        Phase.step: {**permanent, "optimizer_step": (4 if half else 0) * parameters / sharders},
    }


def _fsdp(case: Case, coordinate: int) -> Components:
    """fp32 shards of parameters, gradients and states; whole units in the compute dtype while they are in use.

    A unit is a layer, or an end of the model. In the middle of a layer's backward pass its parameters, the prefetched ones of
    the next and the part of its gradients that is made are there; at the end of an end's, its parameters, its gradients and
    the flat copy of them. The vocabulary is not split over tensor-parallel ranks unless ``vocab_parallel`` says so: the ends
    of the model run data-parallel there, sharded over all of them. Sequence parallelism gathers into two buffers that stay.
    """
    model, tensor = case.model, case.passed.tensor_parallel_size
    replicated = 1 if _splits_vocabulary(case) else tensor
    end = model.vocab_size * model.hidden_size
    stage = case.partition.stages[coordinate]
    parameters = float(shape_of(case, coordinate).parameters)
    shard = parameters / case.data_parallel_size
    activations, logits, working = _passes(case, coordinate)
    permanent = {"parameters": 4 * shard, "gradients": 4 * shard, "optimizer_states": _remembered(case) * shard}
    compute = case.passed.dtype_bytes
    unit = compute * float(layer_parameters(model, tensor))
    whole_end = compute * end * replicated / tensor
    boundary = float(case.passed.micro_batch * case.passed.sequence_length * model.hidden_size * compute)
    permanent["communication_buffers"] = 2 * boundary if case.passed.sequence_parallel else 0.0
    sent = case.pipeline_parallel_size > 1 and not stage.has_head
    output = boundary / (tensor if case.passed.sequence_parallel else 1) if sent else 0.0
    passing = {**permanent, "activations": activations, "pipeline_buffers": output}
    kept = 2 * parameters if case.row.whole("zero_stage") == 2 else 0.0
    return {
        Phase.start: permanent,
        Phase.loss: {**passing, "logits": logits, "gathered_parameters": max(kept, whole_end if stage.has_head else unit)},
        Phase.backward: {
            **passing,
            "layer_working_memory": working,
            "gathered_parameters": max(kept, 2 * unit if stage.num_layers > 1 else unit),
            "gradient_copies": unit / 4,
        },
        Phase.reduction: {
            **permanent,
            "gathered_parameters": max(kept, whole_end if stage.has_embedding else unit),
            "gradient_copies": 2 * (whole_end if stage.has_embedding else unit),
        },
    }


def _torch(case: Case, coordinate: int) -> Components:
    """One replica, or plain data parallelism, as the planner counts an engine without ZeRO.

    Autocast keeps a 16-bit copy of the weights of the pass it runs.
    """
    shape = shape_of(case, coordinate)
    parameters, largest = float(shape.parameters), float(shape.largest_parameter)
    activations, logits, working = _passes(case, coordinate)
    autocast = "amp" in case.row.text("precision")
    element = 4 if autocast or case.row.text("precision") == "fp32" else 2
    permanent = {
        "parameters": element * parameters,
        "gradients": element * parameters,
        "optimizer_states": _remembered(case) * parameters * element / 4,
        "workspace": float(CUBLAS_WORKSPACE_BYTES),
    }
    passing = {**permanent, "autocast_copies": 2 * parameters if autocast else 0.0, "activations": activations}
    return {
        Phase.start: permanent,
        Phase.loss: {**passing, "logits": logits},
        Phase.backward: {**passing, "layer_working_memory": working, "gradient_copies": element * largest},
        Phase.step: {**permanent, "optimizer_step": TEMPORARIES * element * largest},
    }


def _deepspeed(case: Case, coordinate: int) -> Components:
    """The product's own memory model. ZeRO-3 put around plain torch modules keeps whatever weights autograd has saved.

    The pipelines that were read ran DeepSpeed in 2021 and 2022, when the bucket of the reduction took the place of the
    backward pass's (``stage_1_and_2.py:reduce_gradients`` of 0.6.3); today there are two.
    """
    settings = deepspeed_settings(case)
    stage = case.partition.stages[coordinate]
    shape = shape_of(case, coordinate)
    load = StageLoad(
        held=(stage,),
        shape=shape,
        in_flight=(int(case.layer_sets(coordinate)),),
        data_parallel_size=case.data_parallel_size,
        pipeline_parallel_size=case.pipeline_parallel_size,
        accumulates=case.micro_batches > 1,
    )
    components = phase_components(settings, load, PassBytes(case.model, case.passed))
    phases = {phase: dict(parts) for phase, parts in components.items()}
    second_bucket = reduce_bucket_bytes(settings, shape, pipeline=case.pipeline_parallel_size > 1)
    second_bucket -= reduce_bucket_bytes(settings, shape)
    low_precision = "bf16 master" in case.row.note("master_states")
    for phase, parts in phases.items():
        if parts.get("reduce_buckets", 0):
            parts["reduce_buckets"] -= second_bucket
        if low_precision:
            parts["optimizer_states"] = parts.get("optimizer_states", 0) / 2
            parts["optimizer_step"] = 0
        if phase in (Phase.loss, Phase.backward) and _keeps_gathered_weights(case, settings):
            parts["gathered_parameters"] = max(parts.get("gathered_parameters", 0), 2 * shape.parameters)
    return phases


def _keeps_gathered_weights(case: Case, settings: DeepSpeedSettings) -> bool:
    """Whether autograd holds every weight that was gathered: the matrices of modules built outside ``zero.Init``.

    Those built inside run DeepSpeed's own linear, which saves the parameter instead of a view of the gathered storage.
    """
    plain = case.row.note("impl").startswith("nn.") and not case.passed.keeps_inputs
    return plain and settings.zero_stage >= 3 and case.data_parallel_size > 1


def deepspeed_settings(case: Case) -> DeepSpeedSettings:
    """DeepSpeed's settings for a row: its defaults, with what the row states.

    Gradients accumulate in the model's dtype, DeepSpeed's default, unless a row of stage 1 or 2 states another one.
    """
    row = case.row
    precision = row.text("precision")
    dtype = Precision.fp32 if precision == "fp32" else Precision.fp16 if "fp16" in precision else Precision.bf16
    stage = min(3, row.whole("zero_stage"))
    pipeline = case.pipeline_parallel_size > 1
    stated = row.text("grad_dtype")
    accumulated = Precision.fp32 if stage in (1, 2) and stated.startswith("fp32") else dtype
    offload = _device(row.text("offload_optimizer"))
    wrapper = optimizer_wrapper(
        zero_stage=stage,
        dtype=dtype,
        grad_accum_dtype=accumulated,
        pipeline=pipeline,
        offloads_optimizer=offload is not OffloadDevice.none,
    )
    return replace(
        _default_settings(stage, offload),
        dtype=dtype,
        grad_accum_dtype=accumulated,
        communication_data_type=dtype,
        optimizer_wrapper=wrapper,
        overlap_comm=stage == 3,
        offload_param_device=_device(row.text("offload_param")),
        **_published_settings(row),
    )


@cache
def _default_settings(stage: int, offload: OffloadDevice) -> DeepSpeedSettings:
    return resolve_settings(run_config(zero__stage=stage, offload__optimizer_device=offload))


def _published_settings(row: Row) -> dict[str, Any]:
    return {
        key: value for name, values in PUBLISHED_SETTINGS.items() if name in row.text("source") for key, value in values.items()
    }


def _device(stated: str) -> OffloadDevice:
    return OffloadDevice(stated) if stated in ("cpu", "nvme") else OffloadDevice.none
