"""What the memory model says of a published row."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import Accelerator
from orchestrator.planning.memory.device import Phase
from orchestrator.planning.memory.host import LAUNCHER_BYTES, PROCESS_BYTES, host_states
from orchestrator.planning.memory.levels import (
    DeviceSurroundings,
    Levels,
    Overheads,
    cached_bytes,
    extra_groups,
    levels,
    needed_bytes,
)
from orchestrator.units import GIB
from tests.benchmarks.published_memory import Case, NotPredictable, case_of
from tests.benchmarks.published_rows import Row
from tests.benchmarks.published_systems import Components, components_of, deepspeed_settings, shape_of

CONTEXT_BYTES = round(1.3 * GIB)
"""CUDA context with torch's and the libraries' kernels: 1.1 to 1.34 GiB in reports, 0.5 to 1.8 with other versions."""
FIRST_GROUP_BYTES = GIB // 2
"""NCCL's buffers for the first group of ranks, which the planner's clusters count as context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Bytes of the worst of the stages that are compared."""

    needed_bytes: int
    cached_bytes: int
    start_bytes: int
    surroundings: DeviceSurroundings
    components: Components
    host_gib: float | None
    outside_bytes: int

    def levels(self, overheads: Overheads) -> Levels:
        """The three levels of the step."""
        return levels(needed=self.needed_bytes, cached=self.cached_bytes, surroundings=self.surroundings, overheads=overheads)


def predict(row: Row) -> Prediction | str:
    """The prediction, or why there is none."""
    try:
        return predict_case(case_of(row))
    except NotPredictable as problem:
        return str(problem)
    except (ArithmeticError, AssertionError, LookupError, ValueError) as problem:
        return f"the row makes no run: {type(problem).__name__} {problem}"


def predict_case(case: Case) -> Prediction:
    """The worst of the stages that are compared. Raises what a row that makes no run can raise."""
    return max((_of_stage(case, index) for index in case.coordinates), key=lambda found: found.needed_bytes)


def _of_stage(case: Case, coordinate: int) -> Prediction:
    components = components_of(case, coordinate)
    surroundings = _surroundings(case)
    groups = surroundings.extra_groups * Overheads().communicator_bytes
    start = components[Phase.start]
    return Prediction(
        needed_bytes=int(needed_bytes(components)),
        cached_bytes=int(cached_bytes(components)),
        start_bytes=int(sum(start.values())),
        surroundings=surroundings,
        components=components,
        host_gib=_host_gib(case, coordinate),
        outside_bytes=surroundings.context_bytes + groups,
    )


def _surroundings(case: Case) -> DeviceSurroundings:
    sizes = {
        "tensor_parallel_size": case.passed.tensor_parallel_size,
        "pipeline_parallel_size": case.pipeline_parallel_size,
        "data_parallel_size": case.data_parallel_size,
    }
    alone = max(sizes.values()) == 1
    stated = case.row.note("cuda_context_mib")
    context = int(float(stated) * 2**20) if stated.replace(".", "").isdigit() else CONTEXT_BYTES
    capacity = case.row.capacity_gib
    return DeviceSurroundings(
        accelerator=Accelerator.cuda,
        context_bytes=context + (0 if alone else FIRST_GROUP_BYTES),
        extra_groups=extra_groups(**sizes),
        capacity_bytes=round((capacity or 1e6) * GIB),
    )


def _host_gib(case: Case, coordinate: int) -> float | None:
    """RAM of one process with what DeepSpeed offloads to it; the number of processes on the host is not stated."""
    if case.system != "deepspeed":
        return None
    states = host_states(
        deepspeed_settings(case),
        shape_of(case, coordinate),
        data_parallel_size=case.data_parallel_size,
        accumulates=case.micro_batches > 1,
    )
    return (int(states.total) + PROCESS_BYTES + LAUNCHER_BYTES) / GIB
