"""Weights & Biases: one run of rank 0 that goes on over all attempts. It never asks, and never stops a training."""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.tracking.tracker import RunDescription

DEFAULT_BASE_URL = "https://api.wandb.ai"
PREFIXES = {"train": "train/", "evaluate": "evaluate/"}
LOWER_IS_BETTER = ("train/loss", "evaluate/held_out_loss")
X_AXIS = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbDecision:
    """The mode a run will use (``online``, ``offline`` or ``disabled``), and a word on it if the user should know."""

    mode: WandbMode
    notice: str | None = None


def decide_mode(mode: WandbMode, environment: Mapping[str, str]) -> WandbDecision:
    """What ``tracking.wandb`` comes to in ``environment``.

    A mode that is written in the configuration wins over ``WANDB_MODE``; ``auto`` follows ``WANDB_MODE``, and without it
    is online exactly when a key is found. Online without a key would ask for one, so it becomes offline.
    """
    wanted = _mode_of_environment(environment) if mode is WandbMode.auto else mode
    if wanted is WandbMode.online and not has_key(environment):
        return WandbDecision(
            mode=WandbMode.offline, notice="W&B is asked to be online, but there is no key: it records offline"
        )
    if wanted is not WandbMode.auto:
        return WandbDecision(mode=wanted)
    return WandbDecision(mode=WandbMode.online if has_key(environment) else WandbMode.offline)


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether W&B would find an API key: in ``WANDB_API_KEY``, or in the netrc file for the host of ``WANDB_BASE_URL``."""
    if environment.get("WANDB_API_KEY"):
        return True
    host = urlparse(environment.get("WANDB_BASE_URL", DEFAULT_BASE_URL)).hostname or ""
    named = environment.get("NETRC")
    home = Path(environment.get("HOME", "~")).expanduser()
    for file in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        try:
            if netrc.netrc(file).authenticators(host) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _mode_of_environment(environment: Mapping[str, str]) -> WandbMode:
    named = environment.get("WANDB_MODE", "").strip().lower()
    known = {"online": WandbMode.online, "run": WandbMode.online, "offline": WandbMode.offline, "dryrun": WandbMode.offline}
    return WandbMode.disabled if named == "disabled" else known.get(named, WandbMode.auto)


class WandbTracker:
    """Records to W&B. Whatever goes wrong is said once through ``say``, and then this tracker is silent."""

    def __init__(self, config: TrackingConfig, *, run_id: str, say: Callable[[str], None]) -> None:
        self._config = config
        self._run_id = run_id
        self._say = say
        self._run: Any = None
        self.record: dict[str, Any] | None = None
        """Mode, directory, id and url of the run, once it is open."""

    def start(self, description: RunDescription) -> None:
        """Open or continue the run; offline if the server cannot be reached."""
        decision = decide_mode(self._config.wandb, os.environ)
        if decision.notice:
            self._say(decision.notice)
        if decision.mode is WandbMode.disabled:
            return
        try:
            self._open(description, decision.mode)
        except Exception as problem:
            self._say(f"W&B could not start {decision.mode}: {_first_line(problem)}")
            if decision.mode is WandbMode.online:
                self._guarded(lambda: self._open(description, WandbMode.offline))

    def log(self, entry: Mapping[str, Any]) -> None:
        """Record the numbers of an entry under ``train/`` or ``evaluate/``, against its step."""
        if self._run is not None:
            prefix = PREFIXES[entry["kind"]]
            numbers = {prefix + key: value for key, value in entry.items() if _is_measurement(key, value)}
            self._guarded(lambda: self._run.log({X_AXIS: entry["step"], **numbers}))

    def summary(self, values: Mapping[str, Any]) -> None:
        """Record the values of the whole run."""
        if self._run is not None:
            self._guarded(lambda: self._run.summary.update(dict(values)))

    def finish(self, *, failed: bool) -> None:
        """Close the run with the exit code of the training."""
        if self._run is not None:
            self._guarded(lambda: self._run.finish(exit_code=1 if failed else 0))
            self._run = None

    def _open(self, description: RunDescription, mode: WandbMode) -> None:
        import wandb

        run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            group=self._config.group,
            tags=[*self._config.tags],
            name=description.run_name,
            id=self._run_id,
            resume="allow",
            dir=str(description.attempt_dir),
            mode=cast(Any, str(mode)),
            config={
                "config": dict(description.config),
                "plan": dict(description.plan),
                "ds_config": dict(description.ds_config),
            },
            # The launcher keeps the console; code and machine belong to the user's own choice of W&B settings.
            settings=wandb.Settings(silent=True, console="off"),
        )
        run.define_metric(X_AXIS, hidden=True)
        for prefix in PREFIXES.values():
            run.define_metric(f"{prefix}*", step_metric=X_AXIS)
        for name in LOWER_IS_BETTER:
            run.define_metric(name, step_metric=X_AXIS, summary="min,last")
        self._run = run
        url = run.url if mode is WandbMode.online else None
        self.record = {"mode": str(mode), "directory": str(Path(run.dir).parent), "id": run.id, "url": url}
        self._say(f"W&B {mode}: {url or self.record['directory']}")

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as problem:
            self._say(f"W&B failed and records no more: {_first_line(problem)}")
            self._run = None


def _is_measurement(key: str, value: Any) -> bool:
    return key not in ("kind", "step", "time") and isinstance(value, int | float)


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
