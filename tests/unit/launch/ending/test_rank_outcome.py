"""Which rank is named as the first to fail, where several ended almost at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from orchestrator.launch.agent_link import RankSighting
from orchestrator.launch.ending.rank_outcome import first_to_fail, rank_outcomes

PEER_GONE = "RuntimeError: Connection closed by peer [10.0.0.2]:1234"


def agent(host: str, *, exit_code: int, asked: bool, gone: dict[int, float]) -> Any:
    """What the controller knows of a host whose ranks have ended at these times."""
    return SimpleNamespace(
        host=host,
        exit_code=exit_code,
        exited={"exit_code": exit_code, "left": [], "asked": asked},
        stopped=20.0 if asked else None,
        ranks_left=(),
        ranks={rank: RankSighting(rank, 100 + rank, gone=time) for rank, time in gone.items()},
    )


def report(rank: int, *, time: float) -> dict[str, Any]:
    """What a rank writes that has lost its peer."""
    return {"rank": rank, "host": "node-a", "error": PEER_GONE, "traceback": PEER_GONE, "time": time}


def first(tmp_path: Path, *agents: Any, failures: list[dict[str, Any]]) -> Any:
    return first_to_fail(rank_outcomes(tmp_path, agents, failures, log=[], stacks=()))


def test_a_killed_rank_whose_launcher_was_stopped_before_it_could_say_so(tmp_path: Path) -> None:
    """The other host failed of it, and its end was noticed first: the launcher's own exit code is that of our SIGTERM."""
    lost = agent("node-a", exit_code=1, asked=False, gone={0: 12.0})
    killed = agent("node-b", exit_code=-15, asked=True, gone={1: 11.0})
    named = first(tmp_path, lost, killed, failures=[report(0, time=11.5)])
    assert (named.rank, named.host, named.cause) == (1, "node-b", "host-out-of-memory")
    assert "SIGKILL" in named.meaning


def test_a_killed_rank_seen_to_end_together_with_the_one_that_lost_it(tmp_path: Path) -> None:
    both = agent("node-a", exit_code=1, asked=False, gone={0: 12.0, 1: 12.0})
    named = first(tmp_path, both, failures=[report(0, time=11.9)])
    assert named.rank == 1
    assert "SIGKILL" in named.meaning


def test_a_rank_that_ended_after_we_had_asked_is_not_blamed(tmp_path: Path) -> None:
    failed = agent("node-a", exit_code=1, asked=False, gone={0: 12.0})
    ended = agent("node-b", exit_code=-15, asked=True, gone={1: 21.0})
    named = first(tmp_path, failed, ended, failures=[report(0, time=11.9)])
    assert named.rank == 0
