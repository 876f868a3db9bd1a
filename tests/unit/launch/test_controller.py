"""The controller with real agents, and small programs in place of DeepSpeed's launcher.

Several hosts are this machine: a ``ssh`` first on the path runs the command here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.config.enums import LauncherBackend
from orchestrator.control import Stop, read_controller, read_outcome, request_stop
from orchestrator.launch.controller import Controller
from orchestrator.launch.outcome import Outcome, Status
from orchestrator.launch.spec import LaunchSpec

RESULT = "import json, pathlib\npathlib.Path('result.json').write_text(json.dumps({'metric': 1.0, 'status': 'completed'}))\n"
RANK = "import time; time.sleep(600)"
NODE_LAUNCHER = f"""
import os, pathlib, subprocess, sys
rank = [word for word in sys.argv if word.startswith('--node_rank=')][0].split('=')[1]
child = subprocess.Popen([sys.executable, '-c', {RANK!r}], env={{**os.environ, 'RANK': rank}})
pathlib.Path(f'up{{rank}}').write_text(str(os.getpid()))
pathlib.Path(f'rank{{rank}}').write_text(str(child.pid))
"""
"""A launcher with one rank, which it does not end."""


def spec_of(folder: Path, program: str, *, hosts: Sequence[str] = ("localhost",), **changed: Any) -> LaunchSpec:
    values: dict[str, Any] = {
        "backend": LauncherBackend.local if hosts == ("localhost",) else LauncherBackend.ssh,
        "hosts": tuple(hosts),
        "launcher": (sys.executable, "-u", "-c", program),
        "worker": (),
        "master_port": None,
        "environment": {"MARK": str(folder)},
        "working_directory": str(folder),
        "stop_seconds": 10.0,
    }
    return LaunchSpec(**values | changed)


def run(folder: Path, spec: LaunchSpec, **private: str) -> tuple[Outcome, list[str]]:
    echoed: list[str] = []
    outcome = Controller(folder, spec, private=private, echo=echoed.append).run()
    assert read_outcome(folder) == json.loads(json.dumps(outcome.to_dict()))
    record = read_controller(folder)
    assert record is not None and record.has_ended
    assert not (folder / "lease").exists()
    assert not left_over(folder)
    return outcome, echoed


def left_over(folder: Path) -> list[int]:
    """Processes that carry this test's mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def when(paths: Sequence[Path], act: Callable[[], None]) -> None:
    """Do something when all files are there."""

    def wait() -> None:
        while not all(path.exists() and path.read_text() for path in paths):
            time.sleep(0.02)
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``ssh`` that runs the command here; ``no-such-host`` is not found. Its calls are in ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = f"""#!{sys.executable}
import os, sys
open({str(tmp_path / "calls")!r}, "a").write(repr(sys.argv) + "\\n")
host, command = sys.argv[-2:]
if host == "no-such-host":
    print("ssh: Could not resolve hostname no-such-host: Name or service not known", file=sys.stderr)
    sys.exit(255)
os.execvp("bash", ["bash", "-c", command])
"""
    (folder / "ssh").write_text(program)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


TWO = ("node-a", "node-b")


def test_progress_is_passed_on_and_everything_is_logged(tmp_path: Path) -> None:
    program = RESULT + "print('noise'); print('[orchestrator] step 1')"
    outcome, echoed = run(tmp_path, spec_of(tmp_path, program))
    assert (outcome.status, outcome.result) == (Status.completed, {"metric": 1.0, "status": "completed"})
    assert echoed == ["step 1"]
    assert "noise" in (tmp_path / "launcher.log").read_text()


def test_no_result_is_no_success(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, spec_of(tmp_path, "pass"))
    assert outcome.status is Status.failed
    assert "no result" in outcome.reason


def test_every_host_starts_with_its_rank_and_one_port(ssh: Path) -> None:
    program = RESULT + "import sys; print('GOT', sys.argv[1:])"
    outcome, _ = run(ssh, spec_of(ssh, program, hosts=TWO))
    assert outcome.status is Status.completed
    lines = [line for line in (ssh / "launcher.log").read_text().splitlines() if "GOT" in line]
    words = {line.split(": ")[0]: line.split("GOT ")[1] for line in lines}
    assert set(words) == set(TWO)
    assert words["node-a"].replace("--node_rank=0", "--node_rank=1") == words["node-b"]


def test_secrets_reach_the_workers_and_no_command_line_or_file(ssh: Path) -> None:
    program = RESULT + "import os, pathlib; print('GOT', len(os.environ['HF_TOKEN']))"
    run(ssh, spec_of(ssh, program, hosts=TWO), HF_TOKEN="hush-hush")
    assert (ssh / "launcher.log").read_text().count("GOT 9") == 2
    assert not [path for path in ssh.rglob("*") if path.is_file() and "hush" in path.read_text()]


def test_setup_lines_come_first_and_what_they_set_stays(tmp_path: Path) -> None:
    program = RESULT + "import os; print('GOT', os.environ['CUDA'])"
    outcome, _ = run(tmp_path, spec_of(tmp_path, program, setup=("v=12", "export CUDA=$v.4")))
    assert outcome.status is Status.completed
    assert "GOT 12.4" in (tmp_path / "launcher.log").read_text()


def test_a_setup_line_that_fails_ends_the_start(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "open('started', 'w')", setup=("true", "module load cuda/99"))
    outcome, _ = run(tmp_path, spec)
    assert outcome.status is Status.failed
    log = (tmp_path / "launcher.log").read_text()
    assert "launcher.setup failed: module load cuda/99" in log
    assert "command not found" in log
    assert not (tmp_path / "started").exists()


def test_a_host_that_is_not_reached_starts_nothing_anywhere(ssh: Path) -> None:
    spec = spec_of(ssh, "open('started', 'w')", hosts=("node-a", "no-such-host"))
    outcome, _ = run(ssh, spec)
    assert outcome.status is Status.failed
    assert "no-such-host" in outcome.reason
    assert "Could not resolve" in (ssh / "launcher.log").read_text()
    assert not (ssh / "started").exists()


def test_when_one_host_fails_the_others_are_stopped(ssh: Path) -> None:
    program = NODE_LAUNCHER + "if rank == '1':\n  child.kill(); sys.exit(7)\nchild.wait()"
    outcome, _ = run(ssh, spec_of(ssh, program, hosts=TWO))
    assert outcome.status is Status.failed
    assert "node-b" in outcome.reason and "7" in outcome.reason


def test_a_node_launcher_that_dies_quietly_fails_the_run(ssh: Path) -> None:
    """DeepSpeed's runner exits with 0 when its node launcher was killed, and the ranks live on."""
    program = NODE_LAUNCHER + "import time; time.sleep(3)\nif rank == '0': child.wait()"
    outcome, _ = run(ssh, spec_of(ssh, program, hosts=TWO))
    assert outcome.status is Status.failed
    assert "node-b" in outcome.reason
    assert outcome.agents[1].ranks_left == (1,)


def test_an_interrupt_ends_every_process_on_every_host(ssh: Path) -> None:
    when([ssh / "rank0", ssh / "rank1"], lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome, _ = run(ssh, spec_of(ssh, NODE_LAUNCHER + "child.wait()", hosts=TWO))
    assert (outcome.status, outcome.stopped_by) == (Status.interrupted, "signal")


@pytest.mark.parametrize(("how", "stop_seconds"), [(Stop.save, 1.0), (Stop.now, 600.0)], ids=["after stop_seconds", "at once"])
def test_a_stop_request_kills_what_ignores_sigterm(tmp_path: Path, how: Stop, stop_seconds: float) -> None:
    program = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('up').write_text('up')\n"
        "time.sleep(600)"
    )
    when([tmp_path / "up"], lambda: request_stop(tmp_path, how))
    outcome, _ = run(tmp_path, spec_of(tmp_path, program, stop_seconds=stop_seconds))
    assert (outcome.status, outcome.stopped_by) == (Status.interrupted, "request")


def test_an_agent_whose_controller_has_gone_ends_its_session(ssh: Path) -> None:
    """The controller is killed: nothing tells the agents but the end of their orders."""
    code = (
        "from pathlib import Path\n"
        "from tests.unit.launch.test_controller import *\n"
        f"Controller(Path({str(ssh)!r}), spec_of(Path({str(ssh)!r}), NODE_LAUNCHER + 'child.wait()', hosts=TWO),"
        " private={}, echo=print).run()"
    )
    controller = psutil.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    while not all((ssh / name).exists() for name in ("rank0", "rank1")):
        assert controller.poll() is None
        time.sleep(0.05)
    controller.kill()
    controller.wait()
    deadline = time.monotonic() + 30
    while left_over(ssh):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_terminal_that_has_gone_does_not_end_the_run(tmp_path: Path) -> None:
    def gone(_line: str) -> None:
        raise BrokenPipeError

    program = RESULT + "for step in range(2000): print('[orchestrator] step', step)"
    outcome = Controller(tmp_path, spec_of(tmp_path, program), private={}, echo=gone).run()
    assert outcome.status is Status.completed
    assert "step 1999" in (tmp_path / "launcher.log").read_text()
