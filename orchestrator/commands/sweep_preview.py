"""``validate -m``: every point of a sweep planned, in one table; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.commands import deepspeed_json, plan
from orchestrator.commands.planned import plan_run
from orchestrator.commands.result import OK, REFUSED, CommandResult
from orchestrator.config.multirun import ComposedPoint, composed_points, load_multirun
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity
from orchestrator.planning.plan import Plan
from orchestrator.report.sweep import preview_report


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point with its plan; without one, ``findings`` say why."""

    number: int
    overrides: tuple[str, ...]
    plan: Plan | None
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Whether it can run."""
        return self.plan is not None and self.plan.fits

    @property
    def reason(self) -> str:
        """Why it cannot; nothing if it can."""
        errors = [finding for finding in self.findings if finding.severity is Severity.error]
        return "; ".join(f"{finding.field}: {finding.message}" for finding in errors)

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``points``: what ``validate`` says of the point alone, less the parts of its memory and time."""
        planned = {} if self.plan is None else self.plan.to_dict()
        return {
            "number": self.number,
            "overrides": list(self.overrides),
            "verdict": "invalid" if self.plan is None else self.plan.verdict,
            "reason": self.reason or None,
            "findings": [finding.to_dict() for finding in self.findings],
            "layout": planned.get("layout"),
            "memory": None if self.plan is None or self.plan.memory is None else _sizes(self.plan),
            "time": _without_components(planned.get("time")),
        }


def run(overrides: Sequence[str], *, config_dir: Path | None) -> CommandResult:
    """Plan each point of the words' product; exit code 0 if any of them can run.

    Raises:
        ConfigurationError: the words themselves are wrong.
    """
    load_multirun(overrides, config_dir=config_dir)
    points = list(_planned(composed_points(overrides, config_dir=config_dir)))
    fitting = [point for point in points if point.fits]
    timed = [point for point in fitting if point.plan is not None and point.plan.time is not None]
    fastest = min(timed, key=_step_seconds, default=None)
    payload = {
        "verdict": "feasible" if fitting else "infeasible",
        "points": [point.to_dict() for point in points],
        "counts": {"points": len(points), "feasible": len(fitting)},
        "fastest": None if fastest is None else fastest.number,
    }
    rows = [(point.number, point.overrides, point.plan, point.reason) for point in points]
    return CommandResult(exit_code=OK if fitting else REFUSED, payload=payload, text=preview_report(rows))


def _planned(points: Iterator[ComposedPoint]) -> Iterator[PlannedPoint]:
    for point in points:
        planned: Plan | None = None
        findings = point.findings
        if point.config is not None:
            try:
                deepspeed_json.unsupported(point.config)
                config = plan.with_choice(point.config)[0] if point.config.parallelism.auto else point.config
                planned = plan_run(config)
                findings = tuple(planned.findings)
            except ConfigurationError as problem:
                findings = problem.findings
        yield PlannedPoint(number=point.number, overrides=point.overrides, plan=planned, findings=findings)


def _sizes(plan: Plan) -> dict[str, int]:
    """Those of the device and of the host that are fullest."""
    assert plan.memory is not None
    device = max(plan.memory.device, key=lambda entry: entry.device_bytes / entry.capacity_bytes)
    host = max(plan.memory.host, key=lambda entry: entry.peak_bytes / entry.capacity_bytes)
    return {
        "device_bytes": int(device.device_bytes),
        "device_capacity_bytes": int(device.capacity_bytes),
        "host_bytes": int(host.peak_bytes),
        "host_capacity_bytes": int(host.capacity_bytes),
    }


def _without_components(time: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if time is None else {name: value for name, value in time.items() if name != "components"}


def _step_seconds(point: PlannedPoint) -> float:
    assert point.plan is not None and point.plan.time is not None
    return point.plan.time.step_seconds
