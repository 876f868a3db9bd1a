"""What a worker is told: the files of its attempt directory, and its place among the ranks from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.enums import AttentionImplementation
from orchestrator.config.load import run_config_from_dict
from orchestrator.config.schema import RunConfig
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_hf
from orchestrator.run_dir import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAttempt:
    """The attempt as one rank sees it."""

    path: Path
    number: int
    run_name: str
    run_dir: Path
    checkpoint_dir: Path
    resume_tag: str | None
    wandb_id: str
    config: RunConfig
    config_values: Mapping[str, Any]
    model: ModelSpec
    plan: Mapping[str, Any]
    ds_config: dict[str, Any]
    layout: ParallelLayout
    rank: int
    local_rank: int

    @property
    def nvme_directory(self) -> Path | None:
        """The run's own directory on the NVMe disk of each host; None if nothing is offloaded there."""
        zero = self.ds_config["zero_optimization"]
        paths = {zero.get(block, {}).get("nvme_path") for block in ("offload_optimizer", "offload_param")} - {None}
        return Path(paths.pop()) if paths else None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which speaks and writes for all."""
        return self.rank == 0


def read_attempt(path: Path) -> WorkerAttempt:
    """Read the files of an attempt.

    Raises:
        ValueError: the number of started processes is not the plan's.
        ConfigurationError: the model is none that can be built.
    """
    attempt = read_json(path / "attempt.json")
    config_values = read_json(path / "config.json")
    plan = read_json(path / "plan.json")
    layout = ParallelLayout.from_dict(plan["layout"])
    world_size = int(os.environ["WORLD_SIZE"])
    if world_size != layout.world_size:
        raise ValueError(f"the plan is made for {layout.world_size} processes, {world_size} were started")
    return WorkerAttempt(
        path=path,
        number=attempt["attempt"],
        run_name=attempt["run_name"],
        run_dir=Path(attempt["run_dir"]),
        checkpoint_dir=Path(attempt["checkpoint_dir"]),
        resume_tag=attempt["resume_tag"],
        wandb_id=attempt["wandb_id"],
        config=run_config_from_dict(config_values),
        config_values=config_values,
        model=_read_model(path),
        plan=plan,
        ds_config=read_json(path / "ds_config.json"),
        layout=layout,
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
    )


def _read_model(path: Path) -> ModelSpec:
    """The model as it was when the attempt began; the user's own files may have changed, or not be on this host."""
    model = read_json(path / "model.json")
    return model_spec_from_hf(
        model["hf_config"],
        name=model["name"],
        attention_implementation=AttentionImplementation(model["attention_implementation"]),
        dropout=model["dropout"],
    )
