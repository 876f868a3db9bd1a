"""The files and folders that options name, as workers need them: absolute."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.tokens.sources import data_paths


def absolute_paths(config: RunConfig) -> dict[str, str]:
    """The options that name a file or folder and are set, absolute."""
    paths = {
        "model.config_path": config.model.config_path,
        "model.pretrained": config.model.pretrained,
        "cluster.hostfile": config.cluster.hostfile,
        "offload.nvme_path": config.offload.nvme_path,
        **data_paths(config.data),
        "data.cache_dir": config.data.cache_dir,
        "training.script": config.training.script,
    }
    return {option: _absolute(path) for option, path in paths.items() if path}


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Workers run elsewhere and later: every path of the configuration becomes absolute."""
    config = replace(config, run_dir=_absolute(config.run_dir))
    for option, path in absolute_paths(config).items():
        config = _with(config, option.split("."), path)
    return config


def _with(section: Any, keys: Sequence[str], value: str) -> Any:
    """A copy of a section, or of a mapping whose keys are the user's own, with another value at ``keys``."""
    if not keys:
        return value
    key, *rest = keys
    if isinstance(section, Mapping):
        return {**section, key: _with(section[key], rest, value)}
    return replace(section, **{key: _with(getattr(section, key), rest, value)})


def _absolute(path: str) -> str:
    return str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111 - Path's raises for unknown users
