"""What the plan of an attempt predicts, in the terms in which a run is measured; read from its ``plan.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.planning.schedule import Schedule, bubble_fraction
from orchestrator.planning.schedules.replay import PassSeconds

_EVEN = PassSeconds(forward=1, backward_input=1, backward_weight=1)
"""A backward pass takes twice a forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one rank and one step; None where the plan does not say."""

    memory_bytes: int | None = None
    """The peak, as the workers measure it: what torch takes from the device, on a CPU the resident set."""
    capacity_bytes: int | None = None
    step_seconds: float | None = None
    bubble_fraction: float | None = None
    """Of the planned stages; where the plan has no time, of equal ones. None without a pipeline."""


def prediction_of(plan: Mapping[str, Any], config: Mapping[str, Any], *, rank: int | None = None) -> Prediction:
    """What is predicted of ``rank``, or of the rank that takes most.

    Raises:
        KeyError, TypeError, ValueError: the files are none that the orchestrator wrote.
    """
    is_cpu = config["cluster"]["accelerator"] == Accelerator.cpu
    level = "device_bytes" if is_cpu else "reserved_bytes"
    ranks = plan["memory"]["device"] if plan.get("memory") else ()
    asked = [entry for entry in ranks if rank is None or rank in entry["ranks"]]
    fullest = max(asked, key=lambda entry: int(entry[level]), default=None)
    step = plan.get("time")
    return Prediction(
        memory_bytes=None if fullest is None else int(fullest[level]),
        capacity_bytes=None if fullest is None else int(fullest["capacity_bytes"]),
        step_seconds=None if step is None else float(step["step_seconds"]),
        bubble_fraction=_bubble_fraction(plan, config),
    )


def _bubble_fraction(plan: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    layout = plan["layout"]
    stages = int(layout["pipeline_parallel_size"])
    if stages == 1:
        return None
    if plan.get("time") is not None:
        return float(plan["time"]["bubble_fraction"])
    schedule = Schedule(config["parallelism"]["schedule"])
    micro_batches = int(layout["gradient_accumulation_steps"])
    return bubble_fraction(schedule, num_stages=stages, micro_batches=micro_batches, seconds=_EVEN)
