"""Whether a run that is resumed would read the data it has read so far, in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.config.data import DataConfig
from orchestrator.config.load import run_config_from_dict
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.run_dir import read_json
from orchestrator.tokens.sources import training_paths
from orchestrator.tokens.store import open_tokens

_FREE = ("cache_dir", "evaluation")
"""Options that do not change what is trained on."""


def changed_data(config: RunConfig, run_dir: Path) -> list[Finding]:
    """A data position means nothing in other data, or in the same data in another order.

    Prepared tokens may have moved: what they hold counts. Where that cannot be seen from here, the workers compare it with
    the checkpoint.
    """
    earlier = run_config_from_dict(read_json(run_dir / "request" / "config.json"))
    before, after = ({"seed": entry.seed, **_options(entry.data)} for entry in (earlier, config))
    prepared = {entry.option for entry in (*training_paths(earlier.data), *training_paths(config.data))}
    changed = [option for option in sorted(before.keys() | after.keys()) if before.get(option) != after.get(option)]
    return [
        _finding(option, before, after)
        for option in changed
        if not (option in prepared and _may_be_equal(before.get(option), after.get(option)))
    ]


def _options(data: DataConfig) -> dict[str, Any]:
    """Every option that shapes the training order, by its dotted name."""
    values = {name: value for name, value in asdict(data).items() if name not in _FREE}
    sources = values.pop("sources")
    options = {f"data.{name}": value for name, value in values.items()}
    for name, source in sources.items():
        options |= {f"data.sources.{name}.{key}": value for key, value in source.items()}
    return options


def _may_be_equal(before: str | None, after: str | None) -> bool:
    """Whether two places hold equal tokens, or one of them cannot be looked into from here."""
    if before is None or after is None:
        return False
    try:
        return open_tokens(before).identity == open_tokens(after).identity
    except ConfigurationError:
        return True


def _finding(option: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Finding:
    said = before.get(option, "no such source")
    message = f"the run reads its data with {said}, now it is {after.get(option, 'no such source')}"
    fix = f"{option}={said}, or a new run" if option in before else "leave the source out, or a new run"
    return error("resume-data", option, message, fix)
