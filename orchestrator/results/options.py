"""What varies between runs: the options to tell them apart by, and no others."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

import yaml

from orchestrator.results.row import Row
from orchestrator.sweep_point import OF_ONE_START

_BESIDE_TRAINING = ("launcher", "preflight", "planner", "calibration", "prepare", "tracking", "data.cache_dir", "hydra")
"""Options that say how and where a run is started and recorded: no result is theirs, unless they were given by name."""
MISSING = object()


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration by the paths of their options."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": innermost for inner, innermost in flattened(value).items()}
        else:
            flat[str(key)] = value
    return flat


def varying_options(rows: Sequence[Row]) -> list[str]:
    """The options that tell ``rows`` apart, in the order of the configuration.

    An option that was given a value by name is among them. Of the others in one section that vary together, as those of
    ``model=...`` do, only the first stands for all, or the one that is called ``name``.
    """
    named = {key for row in rows for key in overridden(row.overrides)}
    patterns = {option: _pattern([value_of(row, option) for row in rows]) for option in _options(rows, named)}
    varying = {option: pattern for option, pattern in patterns.items() if len(set(pattern) - {None}) > 1}
    shown = {option for option in varying if option in named}
    for section in dict.fromkeys(option.split(".")[0] for option in varying):
        own = [option for option in varying if option.split(".")[0] == section]
        for pattern in dict.fromkeys(varying[option] for option in own):
            alike = [option for option in own if varying[option] == pattern]
            if not shown & set(alike):
                shown.add(next((option for option in alike if option.endswith(".name")), alike[0]))
    return [option for option in varying if option in shown]


def value_of(row: Row, option: str) -> Any:
    """The value of an option in a run, or what its words say where nothing was resolved; ``MISSING`` if that is not known."""
    return row.options[option] if option in row.options else overridden(row.overrides).get(option, MISSING)


@lru_cache(maxsize=4096)
def overridden(overrides: tuple[str, ...]) -> Mapping[str, Any]:
    """The values among the words of a run, by option or group."""
    given: dict[str, Any] = {}
    for word in overrides:
        key, equals, value = word.lstrip("+~").partition("=")
        if equals:
            try:
                given[key] = yaml.safe_load(value)
            except yaml.YAMLError:
                given[key] = value
    return given


def _options(rows: Sequence[Row], named: Set[str]) -> list[str]:
    """The options of runs that were resolved, and the words of those that were not; without those of one start alone."""
    known: dict[str, None] = {}
    for row in rows:
        known |= dict.fromkeys(row.options or overridden(row.overrides))
    return [
        option
        for option in known
        if not _is_of(option, OF_ONE_START) and (option in named or not _is_of(option, _BESIDE_TRAINING))
    ]


def _is_of(option: str, paths: Sequence[str]) -> bool:
    return any(option == path or option.startswith(f"{path}.") for path in paths)


def _pattern(values: Sequence[Any]) -> tuple[int | None, ...]:
    """Which of ``values`` are equal: a number for each value that there is, None where it is missing."""
    numbers: dict[Hashable, int] = {}
    pattern: list[int | None] = []
    for value in values:
        if value is MISSING:
            pattern.append(None)
        else:
            key = value if isinstance(value, Hashable) else json.dumps(value, sort_keys=True, default=str)
            pattern.append(numbers.setdefault(key, len(numbers)))
    return tuple(pattern)
