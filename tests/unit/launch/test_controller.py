"""The controller with real agents, and small programs in place of DeepSpeed's launcher.

Several hosts are this machine: a ``ssh`` first on the path runs the command here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.config.enums import LauncherBackend
from orchestrator.control import Stop, read_controller, read_outcome, request_stop
from orchestrator.launch import controller
from orchestrator.launch.controller import Controller
from orchestrator.launch.ending.hang import ProgressWatch
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.status import Status, StoppedBy
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.transport import LocalTransport
from orchestrator.lease import Lease, LeaseWatch, Request
from orchestrator.presence import RankRecord, write_rank

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
    assert LeaseWatch(folder).look().request is Request.end
    assert not left_over(folder)
    return outcome, echoed


def left_over(folder: Path) -> list[int]:
    """Processes that carry this test's mark in their environment."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if f"MARK={folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def when(paths: Sequence[Path], act: Callable[[], None]) -> None:
    """Do something when all files are there."""

    def wait() -> None:
        while not all(path.exists() and path.read_text() for path in paths):
            time.sleep(0.02)
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The folder of an attempt, the only one of its run."""
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def ssh(attempt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an attempt, and a ``ssh`` that runs the command here; ``no-such-host`` is not found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = f"""#!{sys.executable}
import os, sys
host, command = sys.argv[-2:]
if host == "no-such-host":
    print("ssh: Could not resolve hostname no-such-host: Name or service not known", file=sys.stderr)
    sys.exit(255)
os.execvp("bash", ["bash", "-c", command])
"""
    (folder / "ssh").write_text(program)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return attempt


TWO = ("node-a", "node-b")


def test_progress_is_passed_on_and_everything_is_logged(attempt: Path) -> None:
    program = RESULT + "print('noise'); print('[orchestrator] step 1')"
    outcome, echoed = run(attempt, spec_of(attempt, program))
    assert (outcome.status, outcome.result) == (Status.completed, {"metric": 1.0, "status": "completed"})
    assert echoed == ["step 1"]
    assert "noise" in (attempt / "launcher.log").read_text()


def test_no_result_is_no_success(attempt: Path) -> None:
    outcome, _ = run(attempt, spec_of(attempt, "pass"))
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


def test_setup_lines_come_first_and_what_they_set_stays(attempt: Path) -> None:
    program = RESULT + "import os; print('GOT', os.environ['CUDA'])"
    outcome, _ = run(attempt, spec_of(attempt, program, setup=("v=12", "export CUDA=$v.4")))
    assert outcome.status is Status.completed
    assert "GOT 12.4" in (attempt / "launcher.log").read_text()


def test_a_setup_line_that_fails_ends_the_start(attempt: Path) -> None:
    spec = spec_of(attempt, "open('started', 'w')", setup=("true", "module load cuda/99"))
    outcome, _ = run(attempt, spec)
    assert outcome.status is Status.failed
    log = (attempt / "launcher.log").read_text()
    assert "launcher.setup failed: module load cuda/99" in log
    assert "command not found" in log
    assert not (attempt / "started").exists()


def test_a_folder_that_a_network_disk_shows_late_is_waited_for(attempt: Path, tmp_path: Path) -> None:
    threading.Timer(3.0, (tmp_path / "late").mkdir).start()
    spec = spec_of(attempt, f"import os; os.chdir({str(attempt)!r})\n{RESULT}")
    outcome, _ = run(attempt, replace(spec, working_directory=str(tmp_path / "late")))
    assert outcome.status is Status.completed


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
    program = NODE_LAUNCHER + "if rank == '0': child.wait()"
    outcome, _ = run(ssh, spec_of(ssh, program, hosts=TWO))
    assert outcome.status is Status.failed
    assert "node-b" in outcome.reason
    assert "rank 1 behind" in outcome.reason


def test_an_interrupt_ends_every_process_on_every_host(ssh: Path) -> None:
    when([ssh / "rank0", ssh / "rank1"], lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome, _ = run(ssh, spec_of(ssh, NODE_LAUNCHER + "child.wait()", hosts=TWO))
    assert (outcome.status, outcome.stopped_by) == (Status.interrupted, StoppedBy.signal)


@pytest.mark.parametrize(("how", "stop_seconds"), [(Stop.save, 1.0), (Stop.now, 600.0)], ids=["after stop_seconds", "at once"])
def test_a_stop_request_kills_what_ignores_sigterm(attempt: Path, how: Stop, stop_seconds: float) -> None:
    program = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path('up').write_text('up')\n"
        "time.sleep(600)"
    )
    when([attempt / "up"], lambda: request_stop(attempt, how))
    outcome, _ = run(attempt, spec_of(attempt, program, stop_seconds=stop_seconds))
    assert (outcome.status, outcome.stopped_by) == (Status.interrupted, StoppedBy.request)


def test_an_agent_whose_controller_has_gone_ends_its_session(ssh: Path) -> None:
    """The controller is killed: nothing tells the agents but the end of their orders."""
    code = (
        "from pathlib import Path\n"
        "from tests.unit.launch.test_controller import *\n"
        f"Controller(Path({str(ssh)!r}), spec_of(Path({str(ssh)!r}), NODE_LAUNCHER + 'child.wait()', hosts=TWO),"
        " private={}, echo=print).run()"
    )
    killed = psutil.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    while not all((ssh / name).exists() for name in ("rank0", "rank1")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    deadline = time.monotonic() + 30
    while left_over(ssh):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize("speaks", [True, False], ids=["with stderr", "stderr gone too"])
def test_a_terminal_that_has_gone_does_not_end_the_run(attempt: Path, monkeypatch: pytest.MonkeyPatch, *, speaks: bool) -> None:
    def gone(_line: str) -> None:
        raise BrokenPipeError

    if not speaks:
        stderr = open(os.dup(2), "w")  # noqa: PTH123, SIM115 - a descriptor
        stderr.close()
        monkeypatch.setattr(sys, "__stderr__", stderr)
    program = RESULT + "for step in range(2000): print('[orchestrator] step', step)"
    outcome = Controller(attempt, spec_of(attempt, program), private={}, echo=gone).run()
    assert outcome.status is Status.completed
    assert "step 1999" in (attempt / "launcher.log").read_text()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_what_takes_the_output_ends_the_run(attempt: Path) -> None:
    def faulty(_line: str) -> None:
        raise KeyError("a bug")

    program = "import time; print('[orchestrator] step 1'); time.sleep(600)"
    outcome = Controller(attempt, spec_of(attempt, program), private={}, echo=faulty).run()
    assert outcome.status is Status.failed
    assert not left_over(attempt)


RANKED = """
import json, os, pathlib, signal, subprocess, sys, time
from orchestrator.lease import Lease, LeaseWatch, Request
from orchestrator.presence import Phase, ProgressWriter, RankRecord, write_rank
here = pathlib.Path('.')
rank = os.environ.get('RANK')
if rank is None:
    first = int([word for word in sys.argv if word.startswith('--node_rank=')][0].split('=')[1]) * 2
    words = [sys.executable, '-c', os.environ['RANKED']]
    ranks = [subprocess.Popen(words, env={**os.environ, 'RANK': str(first + local)}) for local in (0, 1)]
    while all(child.poll() is None for child in ranks):
        time.sleep(1)
    code = 0
    for child in ranks:
        if child.poll() not in (0, None):
            code = child.poll()
    if code:
        for child in ranks:
            child.terminate()
    print(f'[ERROR] exits with return code = {code}')
    sys.exit(code % 256 if code else [child.wait() for child in ranks][0])
rank = int(rank)
write_rank(here, RankRecord(rank=rank, local_rank=rank % 2, host='short', pid=os.getpid()))
watch = LeaseWatch(here)
while len(list(here.glob('ranks/*.json'))) < 4:
    time.sleep(0.05)
if rank == 0:
    ProgressWriter(here).advance(Phase.train, step=7)
"""
"""A node launcher with two ranks, which do what comes next when all four are there."""


def ranked(folder: Path, work: str, **changed: Any) -> LaunchSpec:
    program = RANKED + work
    environment = {"MARK": str(folder), "RANKED": program, "PYTHONPATH": str(Path(__file__).parents[3])}
    return spec_of(folder, program, hosts=TWO, environment=environment, **changed)


SAVING = """
while watch.look().request is not Request.save_and_stop:
    time.sleep(0.1)
if rank == 0:
    time.sleep(2)
    (here / 'result.json').write_text(json.dumps({'status': 'stopped', 'checkpoint': 'checkpoints/global_step8'}))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1], ids=["Ctrl-C", "a time limit"])
def test_ranks_that_are_asked_to_save_have_the_time_to(ssh: Path, number: signal.Signals) -> None:
    when([ssh / "progress"], lambda: os.kill(os.getpid(), number))
    outcome, echoed = run(ssh, ranked(ssh, SAVING))
    stopped_by = StoppedBy.signal if number == signal.SIGINT else StoppedBy.time_limit
    assert (outcome.status, outcome.stopped_by) == (Status.interrupted, stopped_by)
    assert outcome.saved == "checkpoints/global_step8"
    assert any("save" in line for line in echoed)


def test_a_second_interrupt_does_not_wait_for_the_save(ssh: Path) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while LeaseWatch(ssh).look().request is not Request.save_and_stop:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    when([ssh / "progress"], twice)
    outcome, _ = run(ssh, ranked(ssh, "time.sleep(600)"))
    assert (outcome.status, outcome.saved) == (Status.interrupted, None)


def test_nothing_is_saved_if_the_run_does_not_want_it(ssh: Path) -> None:
    when([ssh / "progress"], lambda: request_stop(ssh, Stop.save))
    outcome, _ = run(ssh, ranked(ssh, SAVING, save_on_stop=False))
    assert (outcome.status, outcome.stopped_by, outcome.saved) == (Status.interrupted, StoppedBy.request, None)


def test_a_killed_rank_is_named_before_those_that_lost_it(ssh: Path) -> None:
    work = """
if rank == 3:
    time.sleep(3)
    print('the last words of rank 3', flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(3)
report = {'rank': rank, 'host': 'short', 'time': time.time() - 60,
          'error': 'RuntimeError: Connection closed by peer', 'traceback': 'RuntimeError: Connection closed by peer'}
(here / f'failure_rank_{rank}.json').write_text(json.dumps(report))
time.sleep(600)
"""
    outcome, _ = run(ssh, ranked(ssh, work))
    assert outcome.status is Status.failed
    assert outcome.first is not None
    assert (outcome.first.rank, outcome.first.host, outcome.first.exit_code) == (3, "node-b", -9)
    assert outcome.reason.startswith("rank 3 on node-b: ") and "SIGKILL" in outcome.reason
    assert outcome.cause == "host-out-of-memory"
    assert [rank.rank for rank in outcome.ranks] == [0, 1, 2, 3]


def test_a_rank_that_vanishes_is_named_even_if_its_launcher_saw_another_first(ssh: Path) -> None:
    work = """
time.sleep(3)
if rank == 0:
    os.kill(os.getppid(), signal.SIGSTOP)  # its launcher looks only when the other has failed as well
    (here / 'stopped').touch()
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    while not (here / 'stopped').exists():
        time.sleep(0.1)
    time.sleep(1)
    text = 'RuntimeError: Connection reset by peer'
    report = {'rank': 1, 'host': 'short', 'time': time.time() - 5, 'error': text, 'traceback': text}
    (here / 'failure_rank_1.json').write_text(json.dumps(report))
    subprocess.Popen(['sh', '-c', f'sleep 1; kill -CONT {os.getppid()}'])
    sys.exit(1)
time.sleep(600)
"""
    outcome, _ = run(ssh, ranked(ssh, work))
    assert outcome.hosts[0].exit_code == 1
    assert outcome.reason.startswith("rank 0 on node-a: vanished")
    assert outcome.cause == "host-out-of-memory"


def test_what_a_rank_says_of_its_failure_is_the_reason(ssh: Path) -> None:
    work = """
time.sleep(2)
if rank == 1:
    text = 'OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'
    report = {'rank': 1, 'host': 'short', 'time': time.time(), 'error': text, 'traceback': 'Traceback\\n' + text}
    (here / 'failure_rank_1.json').write_text(json.dumps(report))
    sys.exit(1)
time.sleep(600)
"""
    outcome, _ = run(ssh, ranked(ssh, work))
    assert "rank 1 on node-a: OutOfMemoryError" in outcome.reason
    assert outcome.cause == "device-out-of-memory"
    assert outcome.lines[-1].startswith("OutOfMemoryError")


def test_a_run_that_hangs_ends_with_the_stacks_of_its_ranks(ssh: Path) -> None:
    work = """
import faulthandler
def asleep_for_ever():
    while watch.look().request is not Request.dump_stacks:
        time.sleep(0.1)
    (here / 'stacks').mkdir(exist_ok=True)
    with open(here / 'stacks' / f'{rank}.txt', 'w') as file:
        faulthandler.dump_traceback(file=file)
    time.sleep(600)
def in_a_collective():
    asleep_for_ever()
if rank == 3:
    time.sleep(600)
elif rank == 2:
    asleep_for_ever()
in_a_collective()
"""
    outcome, _ = run(ssh, ranked(ssh, work, hang_timeout=8.0))
    assert outcome.status is Status.hung
    assert "step 7" in outcome.reason
    assert "no stack of rank 3" in outcome.reason
    assert [group.ranks for group in outcome.stacks] == [(2,), (0, 1)]
    assert "rank 2 in asleep_for_ever" in outcome.reason


def test_the_time_until_hosts_are_reached_is_no_silence_of_the_run(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class SlowTransport(LocalTransport):
        def start(self, host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
            nonlocal now
            now += 1000.0
            return super().start(host, command)

    monkeypatch.setattr(controller, "ProgressWatch", partial(ProgressWatch, clock=lambda: now))
    spec = spec_of(attempt, f"import time; time.sleep(2)\n{RESULT}", hang_timeout=300.0)
    outcome = Controller(attempt, spec, private={}, echo=print, transport=SlowTransport()).run()
    assert outcome.status is Status.completed


def test_ranks_of_an_attempt_whose_controller_died_end_before_the_next_starts(attempt: Path) -> None:
    earlier = attempt.parent / "0"
    earlier.mkdir()
    Lease(earlier)
    outcome, _ = run(attempt, spec_of(attempt, RESULT))
    assert outcome.status is Status.completed
    assert LeaseWatch(earlier).look().request is Request.end


@pytest.mark.parametrize(
    ("code", "told"),
    [(247, "node-b: .* killed"), (255, "node launcher on node-b was killed, or the link")],
    ids=["a rank", "its host"],
)
def test_through_pdsh_the_failure_of_a_host_is_noticed_while_others_go_on(attempt: Path, code: int, told: str) -> None:
    """pdsh itself only returns when the last host has."""
    program = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: open('terminated', 'w'))\n"
        f"print('pdsh@here: node-b: ssh exited with exit code {code}', flush=True)\n"
        "time.sleep(600)"
    )
    spec = spec_of(attempt, program, hosts=TWO, backend=LauncherBackend.pdsh, master_port=20100)
    outcome, _ = run(attempt, spec, WANDB_API_KEY="hush")
    assert outcome.status is Status.failed
    assert re.search(told, outcome.reason), outcome.reason
    assert not (attempt / "terminated").exists(), "DeepSpeed's runner would kill other jobs by name"
    assert not [path for path in attempt.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]


def test_through_pdsh_a_killed_rank_that_is_alone_on_its_host_is_named(attempt: Path) -> None:
    """Whatever host pdsh reports first: the other rank has only lost it."""
    for rank, host in enumerate(TWO):
        write_rank(attempt, RankRecord(rank=rank, local_rank=0, host=host, pid=rank + 1))
    stamp = "[2026-11-30 14:21:44,566] [ERROR] [launch.py:259:sigkill_handler]"
    said = (
        f"node-b: {stamp} ['python', '-m', 'x'] exits with return code = -9",
        f"node-a: {stamp} ['python', '-m', 'x'] exits with return code = 1",
        "pdsh@here: node-a: ssh exited with exit code 1",
        "pdsh@here: node-b: ssh exited with exit code 247",
    )
    program = f"import time\nprint({chr(10).join(said)!r}, flush=True)\ntime.sleep(600)"
    spec = spec_of(attempt, program, hosts=TWO, backend=LauncherBackend.pdsh, master_port=20100)
    outcome, _ = run(attempt, spec)
    assert outcome.reason.startswith("rank 1 on node-b: a process was killed (SIGKILL)")
    assert [rank.exit_code for rank in outcome.ranks] == [None, -9]


def test_swap_files_of_the_run_are_removed_on_its_hosts_and_nobody_elses(ssh: Path) -> None:
    own, other = ssh / "own", ssh / "other"
    for folder, owner in ((own, "this run"), (other, "another")):
        folder.mkdir()
        (folder / "owner.json").write_text(json.dumps({"run_dir": owner}))
        run(ssh, spec_of(ssh, "raise SystemExit(1)", hosts=TWO, swap_directory=str(folder), swap_owner="this run"))
    assert not own.exists()
    assert other.exists()
