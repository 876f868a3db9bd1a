"""The system's ssh, as every part of the launcher calls it: never a question, never a wait without end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.config.schema import LauncherConfig

UNREACHABLE = 255
"""ssh's own exit code: the host was not reached, or the link was lost."""
_ALIVE_SECONDS = 5
_ALIVE_COUNT = 3


def ssh_argv(host: str, command: Sequence[str], launcher: LauncherConfig) -> list[str]:
    """The ssh that runs ``command`` on ``host``, word by word as given; it ends within 15 s of a lost link.

    No secret may be among the words: process lists show them on both hosts.
    """
    # ssh takes the first value it meets, so a user's own arguments come first and win
    return ["ssh", "-T", "-x", *launcher.ssh_arguments, *ssh_options(launcher), host, shlex.join(command)]


def ssh_options(launcher: LauncherConfig) -> list[str]:
    """The options that keep ssh from asking and from waiting without end."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(max(1, round(launcher.connect_seconds))),
        "ServerAliveInterval": str(_ALIVE_SECONDS),
        "ServerAliveCountMax": str(_ALIVE_COUNT),
        "LogLevel": "ERROR",
        # an open shared connection is used, but none is left behind for others, with our pipes in its hands
        "ControlMaster": "no",
    }
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
