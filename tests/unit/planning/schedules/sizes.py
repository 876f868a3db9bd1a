"""Sizes that a schedule can have, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from orchestrator.planning.schedule import Schedule


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Schedule, dict[str, Any]]:
    """A schedule with the keywords of its sizes."""
    schedule = draw(st.sampled_from(Schedule))
    num_stages, extra = draw(st.integers(1, 6)), draw(st.integers(0, 12))
    micro_batches, num_chunks = 1 + extra, 1
    if schedule is Schedule.interleaved:
        num_chunks = draw(st.integers(2, 4))
        micro_batches = num_stages * draw(st.integers(1, 4))
    elif schedule is Schedule.dual_pipe_v:
        micro_batches = 2 * num_stages + extra
    elif schedule is Schedule.dual_pipe:
        num_stages *= 2
        micro_batches = 2 * (num_stages + extra)
    return schedule, {"num_stages": num_stages, "micro_batches": micro_batches, "num_chunks": num_chunks}
