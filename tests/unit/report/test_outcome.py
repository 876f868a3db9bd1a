from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType

from orchestrator.launch.ending.outcome import HostOutcome, Outcome
from orchestrator.launch.ending.rank_outcome import RankOutcome
from orchestrator.launch.ending.stacks import Frame, StackGroup
from orchestrator.launch.ending.status import Status, StoppedBy
from orchestrator.report.outcome import failure_report, interruption_report

LOG = Path("/runs/books/attempts/1/launcher.log")


def printed(report: list[RenderableType]) -> list[str]:
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        for part in report:
            console.print(part)
    return captured.get().splitlines()


def ended(rank: int) -> RankOutcome:
    return RankOutcome(rank=rank, host=f"node-{rank // 8:03d}", exit_code=None, meaning="ended with the run")


KILLED = replace(ended(777), exit_code=-9, meaning="a process was killed (SIGKILL)", cause="host-out-of-memory", failed=12.0)
FAILED = Outcome(
    status=Status.failed,
    reason="rank 777 on node-097: a process was killed (SIGKILL)",
    hosts=tuple(HostOutcome(host=f"node-{host:03d}", exit_code=247 if host == 97 else 1) for host in range(128)),
    ranks=tuple(KILLED if rank == 777 else ended(rank) for rank in range(1024)),
    first=KILLED,
    lines=("step 41", "step 42"),
    cause="host-out-of-memory",
    meaning="the host's RAM was used up",
    fix="offload less",
)


def test_of_a_thousand_ranks_what_is_equal_is_said_once() -> None:
    lines = printed(failure_report(FAILED, LOG))
    assert len(lines) < 20
    (first,) = [line for line in lines if "failed first" in line]
    assert first.split()[:3] == ["node-097", "777", "-9"]
    (others,) = [line for line in lines if "ended with the run" in line]
    assert "node-000, node-001 ... node-127 (128)" in others
    assert "0-776, 778-1023" in others


def test_the_last_lines_of_the_first_rank_come_before_everything_else() -> None:
    lines = printed(failure_report(FAILED, LOG))
    assert lines[0] == f"the run failed: {FAILED.reason}"
    assert [line.strip() for line in lines[2:4]] == ["step 41", "step 42"]
    assert lines[-1] == f"log: {LOG}"
    assert "    fix: offload less" in lines


def test_a_host_that_started_no_rank_has_its_row() -> None:
    hosts = (HostOutcome(host="node-a", exit_code=-15), HostOutcome(host="node-b", exit_code=None))
    lines = printed(failure_report(replace(FAILED, hosts=hosts, ranks=(), first=None), LOG))
    assert any(line.split()[:2] == ["node-a", "-15"] for line in lines)
    assert any(line.split()[:2] == ["node-b", "-"] for line in lines)


def test_where_the_ranks_of_a_hung_run_stand_is_shown_by_group() -> None:
    frames = (Frame(file="/site/torch/distributed.py", line="7", name="all_reduce"), Frame(file="x.py", line="2", name="train"))
    groups = (StackGroup(ranks=(2,), frames=frames[1:]), StackGroup(ranks=(0, 1, 3), frames=frames))
    lines = printed(failure_report(replace(FAILED, status=Status.hung, first=None, lines=(), stacks=groups), LOG))
    odd, others = (index for index, line in enumerate(lines) if line.startswith("rank "))
    assert lines[odd].startswith("rank 2 ")
    assert lines[others].startswith("rank 0-1, 3 ")
    assert lines[others + 1].strip() == "all_reduce (torch/distributed.py:7)"


def test_a_stopped_run_says_what_it_saved() -> None:
    outcome = Outcome(status=Status.interrupted, reason="it was interrupted", stopped_by=StoppedBy.signal)
    assert "nothing was saved" in printed(interruption_report(outcome, LOG))[0]
    saved = replace(outcome, saved="/runs/books/checkpoints/global_step8")
    assert "saved: checkpoint /runs/books/checkpoints/global_step8" in printed(interruption_report(saved, LOG))[0]
