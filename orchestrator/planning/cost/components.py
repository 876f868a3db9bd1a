"""The parts of a step, each with its seconds, what of them makes the step longer, and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.planning.cost.placement import Placement
from orchestrator.planning.cost.stages import StageSeconds
from orchestrator.planning.cost.training_step import TrainingStep

if TYPE_CHECKING:
    from orchestrator.planning.cost.step_time import StepParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of the step."""

    seconds: float
    """What it takes."""
    exposed_seconds: float
    """What the step is longer for it; the rest runs beside something else."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``time.components``."""
        return {"seconds": self.seconds, "exposed_seconds": self.exposed_seconds, "reason": self.reason}


def step_components(step: TrainingStep, parts: StepParts) -> dict[str, Component]:
    """What the step is made of on the coordinate that has most to do. What takes no time is left out."""
    busiest = max(range(len(parts.busy_seconds)), key=lambda index: parts.busy_seconds[index])
    found = [*_in_passes(step, parts, busiest), *_after_passes(step, parts)]
    return {name: component for name, component in found if component.seconds > 0}


def _in_passes(step: TrainingStep, parts: StepParts, busiest: int) -> Iterator[tuple[str, Component]]:
    """The passes of all micro-batches, and the waiting between them."""
    chunks, rounds = parts.coordinates[busiest], step.micro_batches
    layer = parts.work.layer
    num_layers = sum(chunk.work.layers for chunk in chunks)

    def each(forward: Any, backward: Any, times: float) -> float:
        return float(rounds * times * (forward + backward))

    of_layers = f"{num_layers} layers x {_micro_batches(rounds)}"
    yield "matrix_products", _exposed(each(layer.products, 2 * layer.products, num_layers), of_layers)
    yield "attention", _exposed(each(layer.attention, layer.attention_backward, num_layers), of_layers)
    moved = each(layer.element_wise, layer.element_wise_backward, num_layers)
    yield "element_wise", _exposed(moved, "what lies between the products, over the memory bandwidth")
    ends = sum(each(chunk.work.ends_forward, chunk.work.ends_backward, 1) for chunk in chunks)
    yield "embedding_and_head", _exposed(ends, "embedding, head and loss that this stage holds")
    gradients = sum(each(chunk.work.gradients, 0, 1) for chunk in chunks)
    yield "gradient_accumulation", _exposed(gradients, "weight gradients added up after each micro-batch")
    again = each(layer.recomputed, 0, num_layers)
    yield "recomputation", _exposed(again, f"{step.passed.recompute.value}: computed again in the backward pass")
    yield "launches", _exposed(sum(_launch_excess(chunk, rounds) for chunk in chunks), _launch_reason(parts))
    tensor = sum(each(chunk.work.tensor_forward, chunk.work.tensor_backward, 1) for chunk in chunks)
    group = _group(parts.work.tensor_group)
    yield "tensor_parallel", _exposed(tensor, f"exposed because the next operation needs the result; {group}")
    copies = sum(each(chunk.work.host_copies, chunk.work.host_copies, 1) for chunk in chunks)
    yield "activation_copies", _exposed(copies, "kept inputs to the host and back")
    sends = sum(each(chunk.send_forward, chunk.send_backward, 1) for chunk in chunks)
    yield "pipeline_transfers", _exposed(sends, "exposed because DeepSpeed's sends keep the stage busy")
    yield from _zero_traffic(step, parts, chunks)
    bubble = parts.pipeline_seconds - parts.busy_seconds[busiest]
    stages = step.pipeline_parallel_size
    yield "pipeline_bubble", _exposed(bubble, f"{step.schedule.value}: {stages} stages, {_micro_batches(rounds)} a step")


def _zero_traffic(step: TrainingStep, parts: StepParts, chunks: tuple[StageSeconds, ...]) -> Iterator[tuple[str, Component]]:
    """Gathers and reductions in the passes; what they add is shared out by their size."""
    rounds, group = step.micro_batches, _group(parts.common.data_group)
    gathers = rounds * sum(
        float(chunk.exchange.traffic.forward_gather + chunk.exchange.traffic.backward_gather) for chunk in chunks
    )
    reductions = rounds * sum(float(chunk.exchange.traffic.backward_reduction) for chunk in chunks)
    if not gathers + reductions:
        return
    passes = sum(
        float(chunk.passes.forward + chunk.passes.backward - chunk.send_forward - chunk.send_backward) for chunk in chunks
    )
    computed = sum(float(chunk.work.forward + chunk.work.backward) for chunk in chunks)
    share = rounds * (passes - computed) / (gathers + reductions)
    hidden = (
        "what exceeds the computation beside it, and slows it"
        if parts.common.beside.overlaps
        else "all, because overlap_comm is off"
    )
    for name, seconds, what in (
        ("parameter_gathers", gathers, "ZeRO-3 before each pass"),
        ("gradient_reductions", reductions, f"ZeRO-{step.settings.zero_stage} in each backward pass"),
    ):
        reason = f"{what}, {group}; exposed: {hidden}"
        yield name, Component(seconds=seconds, exposed_seconds=share * seconds, reason=reason)


def _after_passes(step: TrainingStep, parts: StepParts) -> Iterator[tuple[str, Component]]:
    """What is done once a step."""
    slowest = max(parts.coordinates, key=lambda chunks: float(sum(chunk.exchange.update for chunk in chunks)))
    group = _group(parts.common.data_group)
    whole = max(
        float(sum(chunk.exchange.traffic.boundary_reduction + chunk.exchange.tied_reduction for chunk in chunks))
        for chunks in parts.coordinates
    )
    reduction = Component(
        seconds=max(whole, parts.reduction_seconds),
        exposed_seconds=parts.reduction_seconds,
        reason=f"data-parallel all-reduce, {group}; {_reduction_reason(step, parts.common.beside.overlaps)}",
    )
    yield "gradient_reduction", reduction

    def total(name: str) -> float:
        return float(sum(getattr(chunk.exchange.optimizer, name) for chunk in slowest))

    yield "optimizer", _exposed(total("device"), "states and gradients over the memory bandwidth")
    ranks = parts.common.speeds.slots
    sharing = f"{ranks} ranks share" if ranks > 1 else "1 rank has"
    yield (
        "processor_optimizer",
        _exposed(total("processors"), f"exposed because the device waits; {sharing} the host"),
    )
    yield "offload_copies", _exposed(total("host_copies"), "gradients to the host, parameters back")
    yield "nvme_reads", _exposed(total("disk_reads"), f"optimizer states; {sharing} the host's disks")
    yield "nvme_writes", _exposed(total("disk_writes"), f"states written back; {sharing} the host's disks")
    gather = float(sum(chunk.exchange.traffic.parameter_gather for chunk in slowest))
    yield "parameter_gather", _exposed(gather, f"exposed because the next forward pass needs them; {group}")
    yield "overhead", _exposed(parts.common.speeds.step_overhead, "what every step costs beside its work")


def _micro_batches(count: int) -> str:
    return f"{count} micro-batches" if count > 1 else "1 micro-batch"


def _exposed(seconds: float, reason: str) -> Component:
    return Component(seconds=seconds, exposed_seconds=seconds, reason=reason)


def _launch_excess(chunk: StageSeconds, rounds: int) -> float:
    """What the passes take longer than their work, because the host cannot launch it faster."""
    work, layer = chunk.work, chunk.work.layer
    busy = work.layers * (layer.forward + layer.backward + layer.recomputed)
    busy += work.ends_forward + work.ends_backward + work.gradients + work.tensor_forward + work.tensor_backward
    return float(rounds * (work.forward + work.backward - 2 * work.host_copies - busy))


def _launch_reason(parts: StepParts) -> str:
    return f"the device waits for its host, which needs {1e3 * parts.work.layer.launches:.2f} ms to launch a layer's pass"


def _reduction_reason(step: TrainingStep, overlaps: bool) -> str:
    if step.pipeline_parallel_size > 1:
        return "exposed because DeepSpeed's pipeline reduces after the last backward pass"
    if overlaps:
        return "exposed: what exceeds the last backward pass"
    return (
        "exposed because overlap_comm is off"
        if step.settings.zero_stage
        else "exposed because it follows the last backward pass"
    )


def _group(group: Placement) -> str:
    """Where a group is: ``8 ranks in one host``."""
    ranks, hosts = int(group.num_ranks), int(group.num_hosts)
    if hosts == 1:
        return f"{ranks} ranks in one host" if ranks > 1 else "1 rank"
    sharing = int(group.groups_on_host)
    return f"{ranks} ranks on {hosts} hosts" + (f", whose network {sharing} such groups share" if sharing > 1 else "")
