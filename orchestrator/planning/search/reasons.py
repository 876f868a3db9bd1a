"""Why a plan is as fast as it is, and what it gives up against another one."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.planning.search.search import Candidate
from orchestrator.units import format_bytes, format_duration

MOST_PARTS = 3
WORTH_NAMING = 0.02
"""Share of a step from which a part of it is named."""


def largest_parts(candidate: Candidate) -> Iterator[str]:
    """The parts that the step is longest for."""
    time = candidate.time
    parts = sorted(time.components.items(), key=lambda part: -part[1].exposed_seconds)[:MOST_PARTS]
    for name, part in parts:
        share = part.exposed_seconds / time.step_seconds
        if share >= WORTH_NAMING:
            yield f"{name.replace('_', ' ')} {format_duration(part.exposed_seconds)} ({share:.0%}): {part.reason}"


def against(candidate: Candidate, best: Candidate) -> str:
    """What ``candidate`` gives up against the best plan, where, and what it wins."""
    slower = candidate.time.step_seconds / best.time.step_seconds - 1
    saved = candidate.headroom_bytes - best.headroom_bytes
    memory = f"{format_bytes(abs(saved))} a device {'more' if saved > 0 else 'less'} free" if saved else "as much free"
    names = {*candidate.time.components, *best.time.components}
    lost = max(names, key=lambda name: _exposed(candidate, name) - _exposed(best, name))
    where = f", most of it in {lost.replace('_', ' ')}"
    speed = f"{slower:.1%} slower{where}" if slower >= 0.0005 else f"{-slower:.1%} faster" if slower <= -0.0005 else "as fast"
    return f"{speed}; {memory}"


def _exposed(candidate: Candidate, name: str) -> float:
    part = candidate.time.components.get(name)
    return 0.0 if part is None else part.exposed_seconds
