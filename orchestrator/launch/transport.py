"""How a process is started on a host: here, or over ssh. Its standard input and output are pipes to this process."""

from __future__ import annotations

import os
import site
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import psutil

from orchestrator.config.schema import LauncherConfig
from orchestrator.launch.remote import ssh_argv

LOCAL_HOST = "localhost"


class Transport(Protocol):
    """Starts a command on a host."""

    def start(self, host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start ``command`` on ``host``, in a session of its own: what strikes this terminal does not strike it.

        Standard error is part of standard output. What goes wrong on the way (no such host) is printed there, and the
        exit code is not 0.

        Raises:
            OSError: the program that reaches the host is missing.
        """


class LocalTransport:
    """Starts on this machine, whatever the host is called."""

    def start(self, _host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """See ``Transport``."""
        return piped(command)


class SshTransport:
    """Starts over the system's ssh, and on this machine without."""

    def __init__(self, launcher: LauncherConfig) -> None:
        self._launcher = launcher

    def start(self, host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """See ``Transport``."""
        return piped(command if is_this_machine(host) else ssh_argv(host, command, self._launcher))


def python_command(module: str, *arguments: str) -> list[str]:
    """A module of ours as a command for any host: the same Python, and our packages where this process has them.

    The working directory is kept out of its path (``-P``): a folder there may have any name.
    """
    path = python_path()
    environment = ["env", f"PYTHONPATH={path}"] if path else []
    return [*environment, sys.executable, "-P", "-u", "-m", module, *arguments]


def python_path() -> str:
    """``PYTHONPATH`` for the same packages as this process has: its own, and the folder it was started in if ours are there.

    Installed packages are found without: before the standard library they would hide parts of it.
    """
    root = str(Path(__file__).parents[2])
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    own = [root] if root in sys.path and root not in installed else []
    given = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join(dict.fromkeys([*own, *given]))


def is_this_machine(name: str) -> bool:
    """Whether a host name, or an address, is this machine's."""
    here = socket.gethostname()
    if name in (LOCAL_HOST, "127.0.0.1", "::1", here, here.split(".")[0]):
        return True
    addresses = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return name in addresses or (name.split(".")[0] == here.split(".")[0] and name == socket.getfqdn())


def piped(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start ``command`` on this machine in a session of its own, with pipes."""
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
