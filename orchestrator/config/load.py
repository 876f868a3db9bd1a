"""From words on the command line to a checked ``RunConfig``.

Hydra composes plain values over the schema's defaults; ``check`` then holds them against the schema's types. Composing
against the typed schema itself would stop at the first bad value, and people want to hear of all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import setup_globals
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.check import check_overrides, check_values
from orchestrator.config.options import free_mappings
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error

CONFIG_PATH = "pkg://orchestrator.conf"
CONFIG_NAME = "config"
VERSION_BASE = "1.3"


def register_schema() -> None:
    """Make the schema's defaults the first entry (``schema``) of the defaults list in ``conf/config.yaml``."""
    defaults = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(RunConfig), enum_to_str=True))
    for path in free_mappings():
        # their keys are the user's own: no + is needed to add one
        OmegaConf.set_struct(OmegaConf.select(defaults, path), False)
    ConfigStore.instance().store(name="schema", node=defaults, provider="orchestrator")


def load_config(overrides: Sequence[str], *, config_dir: Path | None = None) -> RunConfig:
    """Compose and check a run configuration.

    ``config_dir`` is a folder of the user's own groups and experiments, searched after ours.

    Raises:
        ConfigurationError: with every problem of the overrides and of the composed values.
    """
    with hydra_context(config_dir) as loader:
        usable, findings = check_overrides(overrides, loader)
        try:
            composed = compose(config_name=CONFIG_NAME, overrides=usable)
        except Exception as problem:  # whatever Hydra raises here comes from the user's words or files
            raise ConfigurationError([*findings, composition_finding(problem)]) from None
    values, resolution = resolve(composed)
    config, problems = check_values(values)
    findings += [*resolution, *problems]
    if findings:
        raise ConfigurationError(findings)
    assert config is not None
    return config


def check_words(overrides: Sequence[str], *, config_dir: Path | None = None) -> None:
    """Hold overrides against groups and keys without composing them.

    Raises:
        ConfigurationError: with every problem.
    """
    with hydra_context(config_dir) as loader:
        _, findings = check_overrides(overrides, loader)
    if findings:
        raise ConfigurationError(findings)


def config_from_composed(composed: DictConfig) -> RunConfig:
    """Check what ``@hydra.main`` composed.

    Raises:
        ConfigurationError: with every problem of the values.
    """
    values, findings = resolve(composed)
    config, problems = check_values(values)
    if findings or problems or config is None:
        raise ConfigurationError([*findings, *problems])
    return config


def run_config_from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration in a ``config.json`` that the orchestrator wrote itself."""
    config, findings = check_values(values)
    if config is None:
        raise ConfigurationError(findings)
    return config


def resolve(composed: DictConfig) -> tuple[dict[str, Any], list[Finding]]:
    """Plain values with their ``${...}`` resolved; each that cannot be is a finding and becomes null."""
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    findings: list[Finding] = []

    def resolved(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            return {key: resolved(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [resolved(item, (*path, str(position))) for position, item in enumerate(value)]
        if not (isinstance(value, str) and "${" in value):
            return value
        try:
            return OmegaConf.select(composed, ".".join(path))
        except OmegaConfBaseException as problem:
            field = ".".join(path)
            reason = str(problem).splitlines()[0]
            findings.append(
                error("interpolation", field, f"{value!r} cannot be resolved: {reason}", f"write the value: {field}=...")
            )
            return None

    return {str(key): resolved(value, (str(key),)) for key, value in values.items()}, findings


def combine_overrides(recorded: Sequence[str], given: Sequence[str]) -> list[str]:
    """``recorded`` overrides with ``given`` ones on top: what is given again, or lies inside what is given, goes."""
    keys = [_key(override) for override in given]

    def is_replaced(key: str) -> bool:
        return any(key == other or key.startswith(f"{other}.") for other in keys)

    return [*(override for override in recorded if not is_replaced(_key(override))), *given]


def quoted(value: str) -> str:
    """A text as Hydra's override grammar takes it literally: backslashes count only before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return f"'{escaped}'"


def _key(override: str) -> str:
    return override.split("=", 1)[0].lstrip("+~")


@contextmanager
def hydra_context(config_dir: Path | None) -> Iterator[ConfigLoader]:
    """Hydra's own compose context, with the user's folder on the search path as ``--config-dir`` puts it."""
    register_schema()
    setbase(VERSION_BASE)
    setup_globals()
    search_path = create_config_search_path(CONFIG_PATH)
    if config_dir is not None:
        search_path.prepend(
            provider="command-line", path=f"file://{config_dir.resolve()}", anchor=SearchPathQuery(provider="schema")
        )
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="orchestrator", config_search_path=search_path)
    try:
        yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().clear()


def composition_finding(problem: Exception) -> Finding:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    message = " ".join(lines[:6]) or f"a value cannot be read ({type(problem).__name__})"
    return error("composition", "config", message, "correct the file or the override that is named")
