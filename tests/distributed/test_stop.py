"""A run that is asked to save and stop, and ranks whose lease is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.checkpoints.catalogue import newest
from orchestrator.lease import OVER_EXIT_CODE, Lease, Request
from orchestrator.presence import STACKS, Phase, read_progress, read_ranks
from orchestrator.run_dir import METRICS, checkpoint_dir
from tests.distributed.attempts import entries, new_attempt, trained
from tests.distributed.ranks import run_ranks, start_ranks

STOP_AT = 3
OPTIONS = ("precision=bf16", "zero=stage1", "training.max_steps=6", "training.train_micro_batch_size_per_gpu=1")
LAYOUTS = {
    "dp 2": (2, ()),
    "tp 2": (2, ("parallelism.tensor_parallel_size=2",)),
    "pp 2": (2, ("parallelism.pipeline_parallel_size=2",)),
}


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stacks(attempt: Path, rank: int) -> str:
    path = attempt / STACKS / f"{rank}.txt"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_that_is_stopped_saves_the_step_in_hand_and_goes_on_bit_for_bit(tmp_path, layout):
    world_size, words = LAYOUTS[layout]
    options = (*OPTIONS, *words)
    whole = trained(tmp_path / "whole", *options, world_size=world_size)
    stopped = new_attempt(tmp_path / "stopped", options, world_size=world_size)
    function = "tests.distributed.stopping:run_and_stop"
    run_ranks(function, stopped.path, STOP_AT, world_size=world_size, directory=stopped.path / "ranks")
    assert stopped.result is not None
    tag_dir = checkpoint_dir(stopped.run_dir) / f"global_step{STOP_AT}"
    result = stopped.result
    assert (result["status"], result["steps"], result["checkpoint"]) == ("stopped", STOP_AT, str(tag_dir))
    assert result["held_out_loss"] is None
    resumed = trained(tmp_path / "stopped", *options, world_size=world_size, resume_tag=tag_dir.name)
    steps = [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in entries(whole, "train")]
    assert [
        (entry["step"], entry["loss"], entry["grad_norm"])
        for attempt in (stopped, resumed)
        for entry in entries(attempt, "train")
    ] == steps
    assert resumed.result["held_out_loss"] == whole.result["held_out_loss"]
    bubbles = [entry.get("bubble_fraction") for entry in entries(resumed, "train")]
    assert all(0 < bubble < 1 for bubble in bubbles) if layout == "pp 2" else not any(bubbles)


@pytest.mark.parametrize(("words", "status"), [(("checkpoint.save_on_stop=false",), "completed"), ((), "stopped")])
def test_a_run_that_is_stopped_before_its_first_step_writes_no_checkpoint(tmp_path, words, status):
    attempt = new_attempt(tmp_path / "run", (*OPTIONS, *words), world_size=1)
    function = "tests.distributed.stopping:run_and_stop"
    run_ranks(function, attempt.path, 0, world_size=1, directory=attempt.path / "ranks")
    assert attempt.result is not None
    assert attempt.result["status"] == status
    assert newest(checkpoint_dir(attempt.run_dir)) is None


def test_the_controllers_wish_reaches_the_ranks_through_the_lease(tmp_path):
    attempt = new_attempt(tmp_path / "run", ("training.max_steps=100000", "training.log_every=5"), world_size=2)
    lease = Lease(attempt.path)
    ranks = start_ranks("orchestrator.worker.start:main", [str(attempt.path)], world_size=2, directory=attempt.path / "ranks")
    try:
        wait_until(lambda: lease.renew() is None and (attempt.path / METRICS).exists())
        lease.ask(Request.save_and_stop)
        wait_until(lambda: lease.renew() is None and all(process.exitcode is not None for process in ranks.processes))
    finally:
        ranks.kill()
    assert [process.exitcode for process in ranks.processes] == [0, 0], ranks.output(0)
    assert attempt.result is not None
    assert attempt.result["status"] == "stopped"
    checkpoint = newest(checkpoint_dir(attempt.run_dir))
    assert checkpoint is not None
    assert checkpoint.manifest.step == attempt.result["steps"]
    progress = read_progress(attempt.path)
    assert progress is not None
    assert (progress.step, progress.phase) == (attempt.result["steps"], Phase.end)
    assert [(record.rank, record.local_rank, record.pid) for record in read_ranks(attempt.path)] == [
        (rank, rank, process.pid) for rank, process in enumerate(ranks.processes)
    ]


def test_ranks_stuck_in_a_collective_show_their_stacks_and_end_with_their_lease(tmp_path):
    lease = Lease(tmp_path)
    function = "tests.distributed.stopping:stuck_in_a_collective"
    ranks = start_ranks(function, tmp_path, world_size=2, directory=tmp_path / "ranks")
    try:
        wait_until(lambda: lease.renew() is None and all((tmp_path / f"up_{rank}").exists() for rank in (0, 1)))
        lease.ask(Request.dump_stacks)
        wait_until(lambda: lease.renew() is None and "in barrier" in stacks(tmp_path, 0))
        wait_until(lambda: lease.renew() is None and "in stuck_in_a_collective" in stacks(tmp_path, 1))
        lease.end()
        wait_until(lambda: all(process.exitcode is not None for process in ranks.processes), seconds=60)
        assert [process.exitcode for process in ranks.processes] == [OVER_EXIT_CODE] * 2
        assert "rank 0 ends: the run was stopped" in ranks.output(0)
    finally:
        ranks.kill()
