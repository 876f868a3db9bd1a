"""A run as the files of its attempt describe it to the trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.run_dir import METRICS, WANDB, read_json
from orchestrator.sweep_point import SweepPoint, read_point, read_sweep
from orchestrator.tracking.tracker import RunDescription


def tracking_config(config: Mapping[str, Any]) -> TrackingConfig:
    """The options of tracking in a resolved configuration."""
    values = dict(config["tracking"])
    return TrackingConfig(**{**values, "wandb": WandbMode(values["wandb"])})


def describe(attempt_dir: Path) -> RunDescription:
    """An attempt as its files say it."""
    attempt = read_json(attempt_dir / "attempt.json")
    run_dir = Path(attempt["run_dir"])
    point = read_point(run_dir)
    before = [run_dir / "attempts" / str(number) for number in range(1, attempt["attempt"])]
    return RunDescription(
        run_name=attempt["run_name"],
        run_dir=run_dir,
        attempt=attempt["attempt"],
        attempt_dir=attempt_dir,
        config=read_json(attempt_dir / "config.json"),
        plan=read_json(attempt_dir / "plan.json"),
        ds_config=read_json(attempt_dir / "ds_config.json"),
        sweep=None if point is None else run_dir.parent.name,
        overrides=() if point is None else _own_words(point, run_dir.parent),
        earlier=[path / METRICS for path in before if (path / WANDB).exists()],
    )


def _own_words(point: SweepPoint, sweep_dir: Path) -> Sequence[str]:
    """What the point sets and not the sweep for all of its points, whose words would make all names alike."""
    sweep = None
    with suppress(ValueError, OSError):
        sweep = read_sweep(sweep_dir)
    common = () if sweep is None else sweep.overrides
    return [word for word in point.overrides if word not in common] or point.overrides
