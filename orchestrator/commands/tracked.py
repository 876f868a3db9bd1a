"""Under which id W&B knows a run, and what of it has still to be uploaded."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from orchestrator.run_dir import WANDB, read_json
from orchestrator.sweep_point import read_point


def given_run_id(run_dir: Path, environment: Mapping[str, str]) -> str | None:
    """The id that the environment gives a new run, as ``wandb agent`` does; None for the points of a sweep, which need many."""
    return None if read_point(run_dir) is not None else environment.get("WANDB_RUN_ID") or None


def sync_command(run_dir: Path) -> str | None:
    """The command that uploads what is on this disk only, of all attempts and in their order; None if there is nothing."""
    paths = sorted((run_dir / "attempts").glob(f"*/{WANDB}"), key=lambda path: int(path.parent.name))
    records = [read_json(path) for path in paths]
    left = [record for record in records if not record["uploaded"] and not any(Path(record["directory"]).glob("*.synced"))]
    if not left:
        return None
    online = ["--include-online"] if any(record["mode"] == "online" for record in left) else []
    return shlex.join(["wandb", "sync", *online, *(record["directory"] for record in left)])
