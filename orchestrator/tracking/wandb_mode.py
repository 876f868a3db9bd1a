"""Whether a run is recorded by Weights & Biases online, offline or not at all. Standard library only: every host may ask."""

from __future__ import annotations

import netrc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from orchestrator.config.enums import WandbMode

HOSTED = ("api.forge.coreweave.com", "api.wandb.ai")
"""The public service by its names; wandb 0.31 goes to the first, and takes a key of either."""


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
    host = urlparse(environment["WANDB_BASE_URL"]).netloc if environment.get("WANDB_BASE_URL") else HOSTED[0]
    hosts = HOSTED if host in HOSTED else (host,)
    named = environment.get("NETRC")
    home = Path(environment.get("HOME", "~")).expanduser()
    for file in [Path(named).expanduser()] if named else [home / ".netrc", home / "_netrc"]:
        try:
            known = netrc.netrc(file)
            if any(known.authenticators(name) is not None for name in hosts):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _mode_of_environment(environment: Mapping[str, str]) -> WandbMode:
    named = environment.get("WANDB_MODE", "").strip().lower()
    known = {"online": WandbMode.online, "run": WandbMode.online, "offline": WandbMode.offline, "dryrun": WandbMode.offline}
    return WandbMode.disabled if named == "disabled" else known.get(named, WandbMode.auto)
