"""Options of sweeps and of their results."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import Direction


@dataclass(kw_only=True, slots=True)
class SweepConfig:
    """``launch -m``: what a sweep looks for, and what happens to its points."""

    metric: str | None = None
    """Objective: a number of a point's result.json or metrics; null = the held-out loss, without one the last loss."""
    direction: Direction = Direction.minimize
    """Whether the best point has the least or the most of the metric."""
    resume: bool = False
    """Go on with the sweep in hydra.sweep.dir: only points that are missing, failed or were interrupted are run."""


@dataclass(kw_only=True, slots=True)
class ResultsConfig:
    """``results``: the table of runs and sweeps."""

    sort: str | None = None
    """Column to sort by; null = the objective where there is one, best first."""
    descending: bool = False
    """Sort from the largest down."""
    csv: str | None = None
    """Write the table to this file as well."""
    plot: str | None = None
    """Plot the metric against each parameter that varies, to this folder (SVG and PNG)."""
