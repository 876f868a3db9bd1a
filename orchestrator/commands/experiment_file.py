"""A plan as an experiment: a file of Hydra's group ``experiment`` that says again what was asked for, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error

FOLDER = "experiment"
_OF_THE_COMMAND = frozenset({"command", "output", "dry_run", "run_dir", "planner", "estimate", "measure", "calibration"})


def file_findings(path: Path) -> list[Finding]:
    """What speaks against writing an experiment to ``path``."""
    if path.parent.name != FOLDER or path.suffix != ".yaml":
        folder = path.parent if path.parent.name == FOLDER else path.parent / FOLDER
        wanted = folder / f"{path.stem}.yaml"
        problem = f"{path} is not a .yaml file in a folder called {FOLDER}, where Hydra looks for experiments"
        return [error("plan-file", "planner.apply", problem, f"set planner.apply={wanted}")]
    if path.exists():
        return [error("plan-file", "planner.apply", f"{path} exists already", "name another file, or remove it")]
    return []


def write_experiment(path: Path, words: Sequence[str], values: Mapping[str, Any], *, title: str) -> None:
    """Write the experiment that ``words`` and ``values`` make: ``orchestrator validate experiment=STEM --config-dir FOLDER``.

    ``words`` are the overrides of the command line, whose groups are chosen again; ``values``, dotted options, come after them.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    defaults: list[Any] = []
    overrides: list[Any] = []
    nested: dict[str, Any] = {}
    for word in words:
        override = OverridesParser.create().parse_override(word)
        key, value = override.key_or_group, override.value()
        if key.split(".")[0] in _OF_THE_COMMAND:
            continue
        if key == FOLDER:
            defaults += [name for name in (value if isinstance(value, list) else [value]) if name is not None]
        elif "." not in key and isinstance(value, str) and key not in PLAIN_OPTIONS:
            overrides.append({f"override /{key}": value})
        else:
            _set(nested, key, value)
    for key, value in values.items():
        _set(nested, key, value.value if isinstance(value, Enum) else value)
    content = {"defaults": [*defaults, *overrides], **nested} if defaults or overrides else nested
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package _global_\n# {title}\n{text}", encoding="utf-8")
    except OSError as problem:
        message = f"{path} cannot be written: {problem.strerror}"
        fix = "name a file in a folder that can be made and written"
        raise ConfigurationError([error("plan-file", "planner.apply", message, fix)]) from None


PLAIN_OPTIONS = frozenset({"deepspeed_json", "deepspeed_version", "hf_arguments", "client_optimizer", "seed", "world_size"})
"""Options that stand in no group."""


def _set(nested: dict[str, Any], key: str, value: Any) -> None:
    *groups, name = key.split(".")
    for group in groups:
        nested = nested.setdefault(group, {})
    nested[name] = value
