"""Directories of runs and sweeps in every state, as launch and its sweeps leave them; nothing is trained."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.control import OUTCOME, ControllerRecord, State, write_controller
from orchestrator.lease import Lease
from orchestrator.presence import Phase, ProgressWriter
from orchestrator.run_dir import METRICS, RESULT, write_json, write_text
from orchestrator.sweep_point import PointStatus, Sweep, SweepPoint

STARTED = 1_800_000_000.0


@dataclass(frozen=True)
class Resolved:
    """The two files of an attempt that say what was asked for and what is predicted."""

    config: dict[str, Any]
    plan: dict[str, Any]


@lru_cache
def resolved(overrides: tuple[str, ...]) -> Resolved:
    config = load_config(["experiment=smoke", "run_dir=x", *overrides])
    return Resolved(config=json.loads(json.dumps(asdict(config))), plan=plan_run(config).to_dict())


def make_run(
    run_dir: Path,
    *overrides: str,
    options: Mapping[str, Any] | None = None,
    losses: Sequence[float] = (3.0, 2.0),
    seconds: float = 0.5,
    held_out: float | None = None,
    ending: str | None = "completed",
    reason: str = "the run has ended",
    mfu: float | None = None,
    **outcome: Any,
) -> Path:
    """An attempt that has taken a step for each of ``losses``; ``options`` are changed in its configuration afterwards.

    ``ending`` is the status of its outcome; None: it goes on, ``"dead"``: its controller has gone. Returns its directory.
    """
    base = resolved(overrides)
    attempt = run_dir / "attempts" / "1"
    config = json.loads(json.dumps(base.config))
    for option, value in (options or {}).items():
        section, name = option.split(".")
        config[section][name] = value
    write_json(attempt / "config.json", config)
    write_json(attempt / "plan.json", base.plan)
    write_json(
        attempt / "attempt.json", {"overrides": [*overrides, *(f"{key}={value}" for key, value in (options or {}).items())]}
    )
    write_text(attempt / "launcher.log", "a line\n")
    entries: list[dict[str, Any]] = [
        {
            "kind": "train",
            "step": step,
            "loss": loss,
            "lr": 1e-3,
            "grad_norm": 1.0,
            "step_seconds": seconds if step > 2 else 10 * seconds,
            "tokens_per_second": 1000 / seconds,
            **({} if mfu is None else {"mfu": mfu}),
            "memory_bytes": 2**29,
            "time": STARTED + step,
        }
        for step, loss in enumerate(losses, start=1)
    ]
    if held_out is not None:
        entries.append({"kind": "evaluate", "step": len(losses), "held_out_loss": held_out, "perplexity": 9.0, "time": STARTED})
    write_text(attempt / METRICS, "".join(json.dumps(entry) + "\n" for entry in entries))
    progress = ProgressWriter(attempt)
    progress.advance(Phase.train, step=len(losses))
    Lease(attempt)
    state = State.running if ending in (None, "dead") else State.ended
    write_controller(
        attempt,
        ControllerRecord(
            host="node", pid=1, started=STARTED, backend="local", hosts=("localhost",), detached=False, state=state
        ),
    )
    if ending == "dead":
        os.utime(attempt / "lease", (time.time() - 7200,) * 2)
    elif ending is not None:
        write_json(attempt / OUTCOME, {"status": ending, "reason": reason, "stopped_by": None, **outcome})
        os.utime(attempt / OUTCOME, (STARTED + 90,) * 2)
        os.utime(attempt / "launcher.log", (STARTED + 80,) * 2)
    if ending == "completed":
        memory = {"measured_bytes": 2**30, "predicted_bytes": 2**31, "ranks": []}
        result = {"status": "completed", "steps": len(losses), "final_loss": losses[-1], "held_out_loss": held_out}
        write_json(attempt / RESULT, {**result, "metric": held_out or losses[-1], "tokens_per_second": 5.0, "memory": memory})
    return run_dir


def make_point(run_dir: Path, number: int, status: str, *overrides: str, metric: float | None = None, **changes: Any) -> Path:
    """The record of a sweep's point."""
    point = SweepPoint(
        number=number,
        overrides=overrides,
        config_hash=f"{number:016x}",
        status=PointStatus(status),
        metric=metric,
        metric_name=None if metric is None else "held_out_loss",
        started=STARTED,
        ended=None if status == "running" else STARTED + 60,
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    SweepPoint(**{**{name: getattr(point, name) for name in point.__dataclass_fields__}, **changes}).write(run_dir)
    return run_dir


def make_sweep(sweep_dir: Path, *, metric: str | None = None, direction: str = "minimize") -> Path:
    """The record of a sweep."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    Sweep(overrides=(), metric=metric, direction=direction, created=STARTED, working_directory="/").write(sweep_dir)
    return sweep_dir
