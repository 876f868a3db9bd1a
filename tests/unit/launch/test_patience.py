"""The patience of the controller: with disks and terminals that stand still, with links that do not end, and with its ranks.

In place of an agent there is a small program that says what an agent would.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from orchestrator.control import Stop, request_stop
from orchestrator.launch import agent_link, agents, processes
from orchestrator.launch import controller as controller_module
from orchestrator.launch.controller import Controller
from orchestrator.launch.ending.status import Status
from orchestrator.launch.transport import piped
from orchestrator.lease import Lease
from orchestrator.presence import Phase, ProgressWriter, RankRecord, write_rank
from tests.unit.launch.test_controller import spec_of

AGENT = """
import json, os, select, subprocess, time
def say(**message):
    os.write(1, (json.dumps(message) + chr(10)).encode())
say(event='ready', host='here', port=20100, pid=os.getpid())
STOP = b'"do": "stop"'
orders, heard = b'', time.monotonic()
def turn():
    global orders, heard
    say(event='beat')
    if select.select([0], [], [], 0.05)[0]:
        orders, heard = orders + os.read(0, 65536), time.monotonic()
    if time.monotonic() > heard + 0.8:
        say(event='exited', exit_code=3, left=[])
        os._exit(0)
while b'start' not in orders:
    turn()
"""
"""An agent that speaks as ours do, with less patience: it has been told to start."""
AGENT_ENDS = """
say(event='exited', exit_code=0, left=[])
say(event='ended', reason=None)
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The folder of an attempt, the only one of its run."""
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    return folder


class AgentProgram:
    """Starts a program in place of the agent, in the folder of the attempt."""

    def __init__(self, attempt: Path, program: str) -> None:
        self._program = f"import os; os.chdir({str(attempt)!r})\n{program}"

    def start(self, _host: str, _command: Sequence[str]) -> subprocess.Popen[bytes]:
        return piped([sys.executable, "-c", self._program])


def test_a_disk_and_a_terminal_that_stand_still_for_a_while_do_not_end_the_run(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an NFS server fails over while the output stands in a pager."""
    monkeypatch.setattr(agents, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(agent_link, "SILENCE_SECONDS", 0.8)
    monkeypatch.setattr(processes, "_DRAIN_SECONDS", 0.2)
    renew, write = Lease.renew, processes.Output.write
    moves, stalled = threading.Event(), threading.Event()

    def slow_renew(lease: Lease) -> None:
        if (attempt / "launcher.log").read_text() and not stalled.is_set():
            stalled.set()
            time.sleep(1.5)
        renew(lease)

    def slow_write(output: processes.Output, line: str) -> None:
        write(output, line)
        time.sleep(1.5)

    monkeypatch.setattr(Lease, "renew", slow_renew)
    monkeypatch.setattr(processes.Output, "write", slow_write)
    monkeypatch.setattr(controller_module, "RENEW_SECONDS", 0.5)
    program = AGENT + (
        "say(event='output', text='[orchestrator] step 1' + chr(10))\n"
        "began = time.monotonic()\n"
        "while time.monotonic() < began + 3: turn()\n"
        """open('result.json', 'w').write('{"status": "completed"}')\n"""
    )
    transport = AgentProgram(attempt, program + AGENT_ENDS)
    spec = spec_of(attempt, "")
    outcome = Controller(attempt, spec, private={}, echo=lambda _line: bool(moves.wait(60)), transport=transport).run()
    moves.set()
    assert stalled.is_set()
    assert outcome.status is Status.completed, outcome.reason


def test_a_link_whose_pipe_others_hold_open_does_not_keep_the_controller(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared connection of an older ssh keeps our pipe, and outlives the agent that was lost."""
    monkeypatch.setattr(agent_link, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(controller_module, "_SEE_SECONDS", 0.0)
    transport = AgentProgram(attempt, AGENT + "subprocess.Popen(['sleep', '20'], stdin=-3)\nos._exit(255)")
    started = time.monotonic()
    outcome = Controller(attempt, spec_of(attempt, ""), private={}, echo=print, transport=transport).run()
    assert "nothing is heard" in outcome.reason
    assert time.monotonic() - started < 15


def test_who_asks_to_save_is_not_charged_with_the_silence_before(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a long step or evaluation."""
    monkeypatch.setattr(controller_module, "SAVE_SECONDS", 0.8)
    monkeypatch.setattr(controller_module, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(agents, "BEAT_SECONDS", 0.2)
    ProgressWriter(attempt).advance(Phase.train, step=7)
    threading.Timer(1.5, partial(request_stop, attempt, Stop.save)).start()
    said: list[float] = []
    transport = AgentProgram(attempt, AGENT + "while STOP not in orders: turn()\n" + AGENT_ENDS)
    spec = spec_of(attempt, "")
    Controller(attempt, spec, private={}, echo=lambda _line: said.append(time.monotonic()), transport=transport).run()
    asked, ended = said
    assert ended - asked > 0.6


def test_a_hang_that_passes_leaves_no_stacks_for_the_next(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(agents, "BEAT_SECONDS", 0.2)
    write_rank(attempt, RankRecord(rank=0, local_rank=0, host="here", pid=1))
    progress = ProgressWriter(attempt)
    progress.advance(Phase.train, step=7)

    def moves(line: str) -> None:
        echoed.append(line)
        if "asking every rank" in line and len(echoed) == 1:
            progress.advance(Phase.train, step=8)
        elif "gets on" in line:
            (attempt / "stacks" / "0.txt").write_text("a late answer")
        elif "asking every rank" in line:
            left.append((attempt / "stacks" / "0.txt").read_text())
            (attempt / "stacks" / "0.txt").write_text("an answer")

    echoed: list[str] = []
    left: list[str] = []
    transport = AgentProgram(attempt, AGENT + "while STOP not in orders: turn()\n" + AGENT_ENDS)
    spec = spec_of(attempt, "", hang_timeout=0.8)
    outcome = Controller(attempt, spec, private={}, echo=moves, transport=transport).run()
    assert [line.split(":")[-1].strip() for line in echoed] == [
        "asking every rank where it stands",
        "it gets on again",
        "asking every rank where it stands",
    ]
    assert left == [""]
    assert outcome.status is Status.hung and "step 8" in outcome.reason
