"""What goes wrong while a run trains: it ends with the right code, says what happened, and leaves no process anywhere."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.multihost.job import ASLEEP, ENDLESS, START_SECONDS, ending, start
from tests.multihost.rig import HOOKS, Host, Rig, eventually
from tests.multihost.table import FaultTable

FAILED, INTERRUPTED, KILLED = 4, 130, 137
STOP_SECONDS = 45.0
"""SIGTERM at once, SIGKILL 10 s later, and this machine may be busy."""
LEASE_SECONDS = 60.0
"""30 s as promised, and a start's worth of load."""


@pytest.fixture
def folder(rig: Rig, request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own that all hosts see."""
    return rig.shared / request.node.name


def test_a_rank_is_killed(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """On three hosts; sshd of one stops before, which must not hurt those who are in."""
    job = start(folder, hosts, *ENDLESS)
    job.comes_further()
    hosts[2].stop_sshd()
    job.comes_further()
    victim = job.rank(1)
    ended = ending(job, victim.kill, victims=[victim], within=STOP_SECONDS)
    faults.judge("rank 1 killed -9", 3, ended, code=FAILED, told=(r"rank 1 on host1.*SIGKILL",))


def test_a_rank_is_killed_over_pdsh(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    job = start(folder, hosts[:2], *ENDLESS, "launcher=pdsh")
    job.comes_further()
    victim = job.rank(1)
    ended = ending(job, victim.kill, victims=[victim], within=LEASE_SECONDS)
    faults.judge("rank 1 killed -9, pdsh", 2, ended, code=FAILED, told=(r"rank 1 on host1.*SIGKILL",))


def test_the_node_launcher_of_a_host_is_killed(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    job = start(folder, hosts[:2], *ENDLESS)
    job.comes_further()
    victim = hosts[1].process("deepspeed.launcher.launch", mark=str(folder))
    ended = ending(job, victim.kill, victims=[victim], within=STOP_SECONDS)
    faults.judge("node launcher killed -9", 2, ended, code=FAILED, told=(r"launcher on host1",))


def test_the_agent_of_a_host_is_killed(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """Nobody is left on its host who could end the ranks: they see that the lease is gone."""
    job = start(folder, hosts[:2], *ENDLESS)
    job.comes_further()
    victim = hosts[1].process(" -m orchestrator.launch.agent")
    ended = ending(job, victim.kill, victims=[victim], within=LEASE_SECONDS)
    faults.judge("agent killed -9", 2, ended, code=FAILED, told=(r"agent on host1",))


def test_the_link_is_cut(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """In the middle of a step, on three hosts. The lost host ends by itself."""
    job = start(folder, hosts, *ENDLESS)
    job.comes_further()
    ended = ending(job, hosts[2].cut, within=LEASE_SECONDS)
    faults.judge("link to host2 cut", 3, ended, code=FAILED, told=(r"host2",))


def test_the_controller_is_killed(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """On three hosts. Nobody is left who could say anything, or stop the others."""
    job = start(folder, hosts, *ENDLESS)
    job.comes_further()
    victim = job.controller.process
    ended = ending(job, victim.kill, victims=[victim], within=LEASE_SECONDS)
    faults.judge("controller killed -9", 3, ended, code=KILLED, told=())


def test_the_controller_is_killed_over_pdsh(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """pdsh's own sessions on the hosts end nothing: the ranks see that nobody renews the lease."""
    job = start(folder, hosts[:2], *ENDLESS, "launcher=pdsh")
    job.comes_further()
    victim = job.controller.process
    ended = ending(job, victim.kill, victims=[victim], within=LEASE_SECONDS)
    faults.judge("controller killed -9, pdsh", 2, ended, code=KILLED, told=())


def test_a_detached_run_loses_the_host_that_launched_it(folder: Path, hosts: tuple[Host, ...]) -> None:
    """That host has no part in it. A host of the run sees how it stands, and stops it with a checkpoint."""
    job = start(folder, hosts[:2], *ENDLESS, "launcher.detach=true", on=hosts[2])
    assert job.ends(START_SECONDS) == 0, job.printed
    job.comes_further()
    hosts[2].cut()
    job.comes_further()
    status = hosts[1].run("orchestrator", "status", str(job.run_dir))
    assert "running: step" in status.stdout, status.everything
    stopped = hosts[1].run("orchestrator", "stop", str(job.run_dir), timeout=STOP_SECONDS)
    assert stopped.code == 0, stopped.everything
    assert str(job.run_dir / "checkpoints" / "global_step") in stopped.stdout
    eventually(lambda: not job.processes(), within=STOP_SECONDS, what="nothing is left of it")


def test_a_rank_falls_asleep_for_ever(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """Every other rank waits for it in a collective; the stacks tell which is which."""
    hosts[1].path(HOOKS / "sitecustomize.py").write_text(ASLEEP)
    job = start(folder, hosts[:2], *ENDLESS, "launcher.hang_timeout=60")
    job.comes_further()
    victim = job.rank(1)
    ended = ending(job, lambda: victim.send_signal(signal.SIGUSR1), within=60 + LEASE_SECONDS)
    faults.judge(
        "rank 1 asleep for ever",
        2,
        ended,
        code=FAILED,
        told=(r"the run failed: the run hang", r"rank 1 stands in.*\n *asleep_for_ever"),
    )
    assert "asleep_for_ever" in (job.attempt / "stacks" / "1.txt").read_text()
    assert (job.attempt / "stacks" / "0.txt").exists()


def test_of_two_jobs_on_the_same_hosts_one_is_stopped(folder: Path, hosts: tuple[Host, ...], faults: FaultTable) -> None:
    """Ctrl-C ends one, with a checkpoint, and later Ctrl-C twice the other, without.

    The first to end is on pdsh: DeepSpeed's own runner for it would end every job of this Python on its hosts.
    """
    first = start(folder / "first", hosts[:2], *ENDLESS)
    first.comes_further()
    second = start(folder / "second", hosts[:2], *ENDLESS, "launcher=pdsh")
    second.comes_further()
    ended = ending(second, lambda: second.controller.signal(signal.SIGINT), within=STOP_SECONDS)
    faults.judge("two jobs, Ctrl-C of that on pdsh", 2, ended, code=INTERRUPTED, told=(r"interrupted.*saved: checkpoint",))
    (saved,) = (second.run_dir / "checkpoints").glob("global_step*")
    assert int(saved.name.removeprefix("global_step")) == len(second.steps())
    first.comes_further()

    def twice() -> None:
        first.controller.signal(signal.SIGINT)
        eventually(lambda: "stop once more to end it now" in first.printed, within=30, what="the first Ctrl-C is heard")
        first.controller.signal(signal.SIGINT)

    ended = ending(first, twice, within=STOP_SECONDS)
    faults.judge("Ctrl-C twice", 2, ended, code=INTERRUPTED, told=(r"interrupted.*nothing was saved",))
