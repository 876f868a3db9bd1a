"""A run without its launching shell: ``python -m orchestrator.launch.detach ATTEMPT`` on the first host is its controller.

The launching command starts it through the transport, hands it the private variables on standard input, and leaves when it
has said that it holds the run. It works in a session of its own; what it needs otherwise lies in the attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from orchestrator.config.enums import LauncherBackend
from orchestrator.config.schema import LauncherConfig
from orchestrator.control import ControllerRecord, read_controller
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.launch.controller import Controller
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.transport import SshTransport, Transport, python_command
from orchestrator.run_dir import COMMAND, exclusive, read_json

CONTROLLER_LOG = "controller.log"
"""What a detached controller says, beside the log of the run."""
RULE = "detach"
_START_SECONDS = 60.0
_DRAIN_SECONDS = 5.0
_HELD = "held"


def hand_over(
    attempt: Path, spec: LaunchSpec, *, private: Mapping[str, str], transport: Transport | None = None
) -> ControllerRecord:
    """Have a controller started on the first host; returns when it holds the run.

    Raises:
        ConfigurationError: it could not be started there.
    """
    host = spec.hosts[0]
    process = (transport or SshTransport(spec.ssh_settings)).start(host, python_command(__name__, str(attempt)))
    try:
        printed, _ = process.communicate(json.dumps(dict(private)).encode(), timeout=spec.connect_seconds + _START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        printed = b""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # others may hold the pipe open
            printed, _ = process.communicate(timeout=_DRAIN_SECONDS)
    record = read_controller(attempt)
    words = printed.decode(errors="replace").strip()
    if words.endswith(_HELD) and record is not None:
        return record
    message = f"no controller could be started on {host}: {words or f'see {attempt / CONTROLLER_LOG}'}"
    raise ConfigurationError([error(RULE, "launcher.detach", message, "launcher.detach=false keeps the controller here")])


def sweep_findings(launcher: LauncherConfig) -> list[Finding]:
    """A sweep waits for each of its points, unless they are jobs of a batch system, which has devices for each."""
    if not launcher.detach or launcher.backend is LauncherBackend.slurm:
        return []
    message = "the points of a sweep would all run at once on the same devices"
    return [error(RULE, "launcher.detach", message, "launcher.detach=false, or launch one run")]


def main() -> NoReturn:
    """Read the private variables, leave the caller's session, and run the attempt."""
    attempt = Path(sys.argv[1])
    private = json.load(sys.stdin)
    reader, writer = os.pipe()
    if os.fork() > 0:
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as word:
            said = word.read()
        print(said)
        sys.exit(0 if said == _HELD else 1)
    os.setsid()
    os.close(reader)
    _let_go(attempt)
    with os.fdopen(writer, "w", encoding="utf-8") as word:
        try:
            spec = LaunchSpec.from_dict(read_json(attempt / COMMAND))
            with exclusive(attempt.parents[1]):
                controller = Controller(attempt, spec, private=private, echo=lambda _line: None, detached=True)
                word.write(_HELD)
                word.close()
                controller.run()
        except ConfigurationError as refusal:
            word.write("; ".join(finding.message for finding in refusal.findings))
            sys.exit(1)
    sys.exit(0)


def _let_go(attempt: Path) -> None:
    """Nothing of the caller stays open: ssh waits for whoever holds its pipes."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(attempt / CONTROLLER_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir("/")


if __name__ == "__main__":
    main()
