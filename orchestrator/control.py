"""What the controller of an attempt says of itself, and how it is asked to stop, from any host that sees the run.

::

    controller.json    written when the controller starts, and whenever its state changes
    stop               written by who wants the run to end: "save" or "now"; the controller looks every second
    outcome.json       written last: how the run ended (``Outcome.to_dict`` of ``orchestrator/launch/ending/outcome.py``)

A controller that died leaves a ``controller.json`` whose state is not ``ended``, and a lease that no longer moves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.run_dir import read_json, write_json, write_text

CONTROLLER = "controller.json"
OUTCOME = "outcome.json"
STOP = "stop"


class State(StrEnum):
    """What a controller is doing."""

    connecting = "connecting"
    """Its agents are being started on the hosts."""
    running = "running"
    saving = "saving"
    """The ranks were asked to save and to end."""
    stopping = "stopping"
    ended = "ended"
    """``outcome.json`` is there, and nothing of the run is left."""


class Stop(StrEnum):
    """How a run is asked to end."""

    save = "save"
    """As one Ctrl-C: save first if ``checkpoint.save_on_stop`` says so."""
    now = "now"
    """As two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRecord:
    """Where the controller of an attempt runs. ``started`` is in seconds since the epoch, on the clock of its host."""

    host: str
    pid: int
    started: float
    backend: str
    hosts: tuple[str, ...]
    """The hosts of the run, in the order of their node ranks."""
    detached: bool
    state: State

    @property
    def has_ended(self) -> bool:
        """Whether it has come to its end; if it has not, it may still be dead."""
        return self.state is State.ended


def write_controller(attempt: Path, record: ControllerRecord) -> None:
    """Say where the controller is and what it does."""
    write_json(attempt / CONTROLLER, asdict(record))


def read_controller(attempt: Path) -> ControllerRecord | None:
    """The controller of an attempt; None before it has started."""
    try:
        entry = read_json(attempt / CONTROLLER)
        return ControllerRecord(**entry | {"hosts": tuple(entry["hosts"]), "state": State(entry["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_outcome(attempt: Path) -> dict[str, Any] | None:
    """How the attempt ended; None while it goes on, if its controller died, or if the record is damaged."""
    try:
        outcome = read_json(attempt / OUTCOME)
    except (OSError, ValueError):
        return None
    return outcome if isinstance(outcome, dict) and outcome.keys() >= {"status", "reason"} else None


def request_stop(attempt: Path, how: Stop) -> None:
    """Ask the controller of an attempt to end it.

    Raises:
        OSError: the attempt cannot be written to.
    """
    write_text(attempt / STOP, f"{how}\n")


def read_stop(attempt: Path) -> Stop | None:
    """What was asked for; None if nothing was, or nothing that can be understood."""
    try:
        return Stop((attempt / STOP).read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
