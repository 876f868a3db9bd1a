"""The closed forms of what a live engine can be counted for, component by component, wherever DeepSpeed keeps it.

A process with a CPU holds device and host copies alike, so a component is the sum of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.settings import OptimizerWrapper
from orchestrator.planning.broadcast import smaller
from orchestrator.planning.memory.activations import Pass, PassBytes
from orchestrator.planning.memory.buffers import reduce_bucket_bytes
from orchestrator.planning.memory.device import StageLoad
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.memory.host import host_states
from orchestrator.planning.memory.nvme import nvme_bytes
from orchestrator.planning.memory.states import device_states, step_gradient_bytes
from orchestrator.planning.partition import Partition
from orchestrator.units import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """Bytes of the components of one class of equal ranks, of which ``rank`` is the first."""

    stage: int
    rank: int
    in_flight: tuple[int, ...]
    """Micro-batches whose activations each of its stages keeps at once."""
    components: Mapping[str, int]
    resident_bytes: int
    """What a process that holds all but the activations takes of RAM: of a bucket only what is written."""


def closed_forms(estimator: Estimator, partition: Partition) -> tuple[ClosedForm, ...]:
    """One entry for each pipeline coordinate.

    Activations are those of a CPU, whose kernels keep what the fused CUDA kernels keep, and host copies are not rounded up as
    page-locked blocks are. Buckets are counted whole.
    """
    on_cpu = replace(estimator, settings=replace(estimator.settings, accelerator=Accelerator.cpu))
    return tuple(_closed_form(on_cpu, index, load, passed) for index, (load, passed) in enumerate(on_cpu.loads(partition)))


def _closed_form(estimator: Estimator, index: int, load: StageLoad, passed: Pass) -> ClosedForm:
    settings, components = estimator.settings, _components(estimator, load, passed)
    written = int(reduce_bucket_bytes(settings, load.shape, pipeline=load.pipeline_parallel_size > 1))
    elsewhere = sum(components[name] for name in ("reduce_buckets", "nvme", "activations"))
    return ClosedForm(
        stage=index,
        rank=estimator.layout.stage_ranks(index).start,
        in_flight=tuple(int(count) for count in load.in_flight),
        components={name: size for name, size in components.items() if size},
        resident_bytes=sum(components.values()) - elsewhere + written,
    )


def _components(estimator: Estimator, load: StageLoad, passed: Pass) -> dict[str, int]:
    settings, shape, dp = estimator.settings, load.shape, load.data_parallel_size
    trained = shape.trainable_parameters
    sizes = {"num_parameters": shape.parameters, "num_trainable": trained, "num_muon": shape.muon_parameters}
    device = device_states(settings, data_parallel_size=dp, **sizes)
    host = host_states(settings, shape, data_parallel_size=dp, accumulates=load.accumulates)
    gradients = step_gradient_bytes(settings, num_parameters=trained, data_parallel_size=dp) + host.gradients
    if settings.optimizer_wrapper is OptimizerWrapper.zero12 and settings.offloads_optimizer:
        # each gradient is staged on its way to host memory
        gradients = gradients + shape.largest_parameter * DTYPE_BYTES[settings.dtype]
    held, of_pass = [*zip(load.held, load.in_flight, strict=True)], PassBytes(estimator.spec, passed)
    whole = (
        smaller(shape.persistent_parameters, shape.parameters) if settings.optimizer_wrapper is OptimizerWrapper.zero3 else 0
    )
    return {
        "parameters": int(device.parameters + host.parameters),
        "gathered_parameters": int(whole * DTYPE_BYTES[settings.dtype]),
        "gradients": int(gradients),
        "optimizer_states": int(device.optimizer_states + host.optimizer_states),
        "reduce_buckets": int(
            reduce_bucket_bytes(
                replace(settings, accelerator=Accelerator.cuda), shape, pipeline=load.pipeline_parallel_size > 1
            )
        ),
        "swap_buffers": int(host.swap_buffers),
        "nvme": int(nvme_bytes(settings, data_parallel_size=dp, **sizes)),
        "activations": sum(
            int(bytes_of(stage, in_flight=in_flight))
            for stage, in_flight in held
            for bytes_of in (of_pass.activations, of_pass.host_activations)
        ),
    }
