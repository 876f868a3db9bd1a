"""What ``-m`` is told: how its points come about, and each point's configuration, composed without starting anything."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.check import OVERLAYS, check_overrides
from orchestrator.config.enums import Direction
from orchestrator.config.load import (
    CONFIG_NAME,
    composition_finding,
    config_from_composed,
    hydra_context,
    resolve,
)
from orchestrator.config.schema import RunConfig
from orchestrator.config.sweep import SweepConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error

MOST_POINTS = 5_000
"""More cannot be looked at in one table."""
_PLUGINS = {"optuna": "hydra/sweeper", "joblib": "hydra/launcher", "submitit": "hydra/launcher"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Multirun:
    """How a sweep is made: Hydra's sweeper and launcher with their settings, where it lies, and what it looks for."""

    sweep_dir: Path
    """Absolute."""
    sweeper: str
    """Name in the group ``hydra/sweeper``."""
    launcher: str
    """Name in the group ``hydra/launcher``."""
    sweeper_settings: Mapping[str, Any]
    words: tuple[Override, ...]
    """What the points are made of: the sweeper's own ``params``, then the words."""
    options: SweepConfig
    given: frozenset[str]
    """The options and groups that the words set."""

    @property
    def is_parallel(self) -> bool:
        """Whether points run in other processes, maybe at once."""
        return self.launcher != "basic"

    @property
    def is_optuna(self) -> bool:
        """Whether Optuna chooses the points."""
        return self.sweeper == "optuna"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedPoint:
    """A point that nothing has been started of; ``config`` is None if ``findings`` say why there is none."""

    number: int
    overrides: tuple[str, ...]
    config: RunConfig | None
    findings: tuple[Finding, ...] = ()


def load_multirun(overrides: Sequence[str], *, config_dir: Path | None = None) -> Multirun:
    """Check the words of a multirun, compose what is common to its points, and say how they come about.

    Raises:
        ConfigurationError: with every problem; a swept file that chooses another sweeper or launcher is one, as Hydra
            would ignore what it says.
    """
    with hydra_context(config_dir) as loader:
        _, findings = check_overrides(overrides, loader, sweep=True)
        if findings:
            raise ConfigurationError(findings)
        master = _master(overrides)
        try:
            _, findings = check_overrides(_params(master), loader, sweep=True)
            findings += _ignored(master, overrides, loader)
            if findings:
                raise ConfigurationError(findings)
            return _multirun(master, overrides, loader)
        except (HydraException, OmegaConfBaseException) as problem:
            raise ConfigurationError([composition_finding(problem)]) from None


def composed_points(overrides: Sequence[str], *, config_dir: Path | None = None) -> Iterator[ComposedPoint]:
    """The points of the product of all words and of ``hydra.sweeper.params``, as Hydra's basic sweeper makes it.

    An interval, which has no product, stands for its two ends.

    Raises:
        ConfigurationError: the words cannot be composed, or make more than ``MOST_POINTS`` points.
    """
    with hydra_context(config_dir) as loader:
        master = _master(overrides)
        composed = _Composed(master, loader)
        for number, words in enumerate(_product(master, loader)):
            try:
                yield ComposedPoint(number=number, overrides=words, config=config_from_composed(composed.point(number, words)))
            except ConfigurationError as problem:
                yield ComposedPoint(number=number, overrides=words, config=None, findings=problem.findings)
            except (HydraException, OmegaConfBaseException) as problem:
                yield ComposedPoint(number=number, overrides=words, config=None, findings=(composition_finding(problem),))


class _Composed:
    """Composes points as Hydra does it for a job. Points that differ in single values only share one composition."""

    def __init__(self, master: DictConfig, loader: ConfigLoader) -> None:
        self._master = master
        self._loader = loader
        self._groups = set(loader.list_groups(""))
        self._composed: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}

    def point(self, number: int, words: Sequence[str]) -> DictConfig:
        """The configuration of a point, unresolved and without Hydra's own part."""
        parsed = OverridesParser.create().parse_overrides(list(words))
        groups = tuple(str(word.input_line) for word in parsed if word.key_or_group in self._groups)
        values = [word for word in parsed if word.key_or_group not in self._groups]
        if groups not in self._composed:
            self._composed[groups] = self._split(self._loader.load_sweep_config(self._master, list(groups)))
        shared, hydra = self._composed[groups]
        hydra.hydra.job.id = hydra.hydra.job.num = number
        hydra.hydra.runtime.output_dir = str(Path(hydra.hydra.sweep.dir) / str(number))
        HydraConfig.instance().cfg = hydra  # type: ignore[assignment]
        point = copy.deepcopy(shared)
        ConfigLoaderImpl._apply_overrides_to_config(values, point)
        return point

    @staticmethod
    def _split(whole: DictConfig) -> tuple[DictConfig, DictConfig]:
        """The run's part, and Hydra's, which ``${hydra:...}`` reads."""
        hydra = OmegaConf.masked_copy(whole, "hydra")
        OmegaConf.set_readonly(hydra, False)
        with read_write(whole), open_dict(whole):
            del whole["hydra"]
        return whole, hydra


def _master(overrides: Sequence[str]) -> DictConfig:
    """What Hydra composes before it asks the sweeper for points."""
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    try:
        return hydra.compose_config(CONFIG_NAME, list(overrides), run_mode=RunMode.MULTIRUN, with_log_configuration=False)
    except Exception as problem:  # whatever Hydra raises here comes from the user's words or files
        raise ConfigurationError([_plugin_finding(problem) or composition_finding(problem)]) from None


def _plugin_finding(problem: Exception) -> Finding | None:
    """A sweeper or launcher that is not installed is no wrong word."""
    for name, group in _PLUGINS.items():
        if f"'{group}/{name}" in str(problem):
            message = f"{name} needs a plugin of Hydra that is not installed"
            return error("sweep-plugin", group, message, "pip install 'orchestrator[sweep]'")
    return None


def _ignored(master: DictConfig, overrides: Sequence[str], loader: ConfigLoader) -> Iterator[Finding]:
    """Swept files that would choose another sweeper or launcher: Hydra has chosen them before it composes a point."""
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(overrides)):
        if override.key_or_group not in OVERLAYS or not override.is_sweep_override():
            continue
        for choice in override.sweep_string_iterator():
            words = [word for word in overrides if word.split("=", 1)[0].lstrip("+") != override.key_or_group]
            point = _master([*words, f"{override.get_key_element()}={choice}"])
            for part in ("sweeper", "launcher"):
                if OmegaConf.to_container(point.hydra[part]) != OmegaConf.to_container(master.hydra[part]):
                    field = f"{override.key_or_group}={choice}"
                    message = f"it sets hydra.{part}, which is chosen for all points together and ignored in a swept file"
                    fix = f"give {field} alone, or say hydra/{part}=... and hydra.{part}.KEY=... in words"
                    yield error("sweep-ignored", field, message, fix)


def _multirun(master: DictConfig, overrides: Sequence[str], loader: ConfigLoader) -> Multirun:
    sweep, findings = resolve(OmegaConf.create({"sweep": master.sweep}))
    options = SweepConfig(**{**sweep["sweep"], "direction": Direction[sweep["sweep"]["direction"]]})
    given = {word.split("=", 1)[0].lstrip("+") for word in overrides}
    if findings:
        raise ConfigurationError(findings)
    return Multirun(
        sweep_dir=Path(master.hydra.sweep.dir).expanduser().absolute(),
        sweeper=str(master.hydra.runtime.choices["hydra/sweeper"]),
        launcher=str(master.hydra.runtime.choices["hydra/launcher"]),
        sweeper_settings=_plain(master.hydra.sweeper),
        words=tuple(_swept_words(master, loader)),
        options=options,
        given=frozenset(given),
    )


def _plain(node: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _product(master: DictConfig, loader: ConfigLoader) -> list[tuple[str, ...]]:
    """The words of every point."""
    parsed = [_ends(word) for word in _swept_words(master, loader)]
    count = math.prod(len(list(word.sweep_iterator())) if word.is_sweep_override() else 1 for word in parsed)
    if count > MOST_POINTS:
        message = f"the words make {count} points"
        raise ConfigurationError([error("sweep-size", "-m", message, f"look at no more than {MOST_POINTS} at once")])
    (points,) = BasicSweeper.split_arguments(parsed, None)
    return [tuple(point) for point in points]


def _swept_words(master: DictConfig, loader: ConfigLoader) -> list[Override]:
    """What the sweeper makes points of: its own ``params``, then the words."""
    return OverridesParser.create(config_loader=loader).parse_overrides([*_params(master), *master.hydra.overrides.task])


def _params(master: DictConfig) -> list[str]:
    """What a file of the group ``sweep`` says of the values, as words; not every sweeper knows it."""
    return [f"{key}={value}" for key, value in (master.hydra.sweeper.get("params") or {}).items()]


def _ends(override: Override) -> Override:
    """An interval as a choice of its two ends; anything else as it is."""
    if not override.is_interval_sweep():
        return override
    interval = override.value()
    assert isinstance(interval, IntervalSweep)
    return OverridesParser.create().parse_override(f"{override.get_key_element()}={interval.start},{interval.end}")
