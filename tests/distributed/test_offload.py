"""What leaves the device changes where things are, not what is learned; and the disk is as it was afterwards."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.checkpoints.catalogue import newest
from orchestrator.run_dir import Attempt, checkpoint_dir, read_json
from tests.distributed.attempts import WORKER, curve, entries, failure, largest_relative_difference, new_attempt, trained
from tests.distributed.ranks import RankFailedError, Ranks, run_ranks, start_ranks

TOLERANCE = 1e-5
COMMON = (
    "data.ignore_fraction=0.4",
    "training.gradient_clipping=0.1",
    "zero.sub_group_size=3000",
    "zero.stage3_param_persistence_threshold=40",
)
ON_DISK = (
    "zero=stage3",
    # DeepSpeed leaves what is below 1 MiB in memory: partitions of the embedding and the head, and some groups of partitions
    # in the optimizer are not, the others are.
    "model.vocab_size=2048",
    "model.hidden_size=256",
    "model.intermediate_size=512",
    "zero.sub_group_size=300000",
    "zero.stage3_param_persistence_threshold=1000",
    "offload.param_buffer_size=300000",
    "training.gradient_clipping=0.1",
    "training.max_steps=6",
)
PIPELINE = ("zero=stage1", "parallelism.pipeline_parallel_size=2")


@pytest.fixture(scope="module")
def without_offload(tmp_path_factory):
    """Curves of loss and gradient norm without offload, each made once."""
    known: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}

    def curves(*options: str) -> tuple[list[float], list[float]]:
        if options not in known:
            attempt = trained(tmp_path_factory.mktemp("plain") / "run", *options, world_size=2)
            known[options] = (curve(attempt), curve(attempt, "grad_norm"))
        return known[options]

    return curves


def require_equal(attempt: Attempt, expected: tuple[list[float], list[float]]) -> None:
    assert largest_relative_difference(curve(attempt), expected[0]) < TOLERANCE
    assert largest_relative_difference(curve(attempt, "grad_norm"), expected[1]) < 10 * TOLERANCE


@pytest.mark.parametrize(
    ("layout", "offload"),
    [
        (("zero=stage1",), ("offload=optimizer_cpu",)),
        (("zero=stage2",), ("offload=optimizer_cpu",)),
        (("zero=stage3",), ("offload=optimizer_cpu",)),
        (("zero=stage3",), ("offload.param_device=cpu",)),
        (("zero=stage3",), ("offload=all_cpu",)),
        (("zero=stage3",), ("offload=optimizer_cpu_partial",)),
        (("zero=stage3",), ("offload=all_cpu", "offload.optimizer_ratio=0.5")),
        (PIPELINE, ("offload=optimizer_cpu",)),
        (("zero=stage1", "parallelism.tensor_parallel_size=2"), ("offload=optimizer_cpu",)),
        (("zero=stage3", "parallelism.tensor_parallel_size=2"), ("offload=all_cpu",)),
    ],
    ids=lambda words: " ".join(word.rpartition(".")[2] for word in words),
)
def test_offload_to_host_memory_trains_the_same(tmp_path, without_offload, layout, offload):
    attempt = trained(tmp_path / "run", *COMMON, *layout, *offload, world_size=2)
    require_equal(attempt, without_offload(*COMMON, *layout))


@pytest.mark.parametrize("offload", ["all_nvme", "optimizer_nvme"])
def test_offload_to_a_disk_trains_the_same_from_real_files_and_leaves_nothing(tmp_path, without_offload, report, offload):
    disk = tmp_path / "disk"
    attempt = new_attempt(tmp_path / "run", (*ON_DISK, *on_disk(disk, offload)), world_size=2)
    ranks = start_ranks(WORKER, attempt.path, world_size=2, directory=attempt.path / "ranks")
    seen = largest_sizes(disk, ranks)
    ranks.results()
    require_equal(attempt, without_offload(*ON_DISK))
    kinds = {"optimizer", "param"} if offload == "all_nvme" else {"optimizer"}
    for kind in kinds:
        for rank in (0, 1):
            files = [path for path in seen if path.suffix == ".swp" and is_of(path, kind, rank)]
            assert files, (kind, rank, sorted(seen))
            assert all(seen[path] >= 2**20 for path in files if "gradient" not in path.name)
    assert list(disk.iterdir()) == []
    total = sum(size for path, size in seen.items() if path.suffix == ".swp")
    report(f"{offload}: {len(seen)} files, {total / 2**20:.0f} MiB on the disk during the training, nothing after it")


@pytest.mark.parametrize("owner", [None, {"run_dir": "/somewhere/else", "attempt": 0}, "not json"])
def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path, owner):
    attempt = new_attempt(tmp_path / "run", (*ON_DISK, *on_disk(tmp_path / "disk")), world_size=2)
    directory = nvme_directory(attempt)
    (directory / "zero_stage_3").mkdir(parents=True)
    (directory / "zero_stage_3" / "0.tensor.swp").write_bytes(b"somebody's")
    if owner is not None:
        (directory / "owner.json").write_text(json.dumps(owner) if isinstance(owner, dict) else owner)
    before = contents(tmp_path / "disk")
    ranks = start_ranks("orchestrator.worker.start:main", [str(attempt.path)], world_size=2, directory=attempt.path / "ranks")
    for process in ranks.processes:
        process.join(120)
    assert [process.exitcode for process in ranks.processes] == [1, 1]
    said = [line for line in ranks.output(0).splitlines() if line.startswith("[rank0]: error: ")]
    assert said == [line for line in said if line.startswith("[rank0]: error: offload.nvme_path: ")]
    assert len(said) == 1
    assert str(directory) in said[0]
    assert "Traceback" not in ranks.output(0)
    assert str(directory) in failure(attempt, 0)["error"]
    assert contents(tmp_path / "disk") == before
    assert attempt.result is None


def test_what_a_killed_attempt_left_is_removed_by_the_next_which_resumes_bit_for_bit(tmp_path):
    options = (*ON_DISK, *on_disk(tmp_path / "disk"), "checkpoint.save_every=2", "checkpoint.keep=0", "training.max_steps=16")
    whole = trained(tmp_path / "whole", *options, world_size=2)
    killed = new_attempt(tmp_path / "killed", options, world_size=2)
    function = "tests.distributed.stopping:run_slowly_at_the_end"
    ranks = start_ranks(function, killed.path, 2, world_size=2, directory=killed.path / "ranks")
    deadline = time.monotonic() + 240
    while newest(checkpoint_dir(killed.run_dir)) is None:
        assert time.monotonic() < deadline, ranks.output(0)
        time.sleep(0.005)
    ranks.kill()
    assert killed.result is None, "the kill came too late to test anything"
    left = nvme_directory(killed)
    (left / "a_file_of_the_killed_attempt").touch()
    assert list(left.rglob("*.swp"))
    checkpoint = newest(checkpoint_dir(killed.run_dir))
    resumed = new_attempt(tmp_path / "killed", options, world_size=2, resume_tag=checkpoint.tag)
    ranks = start_ranks(WORKER, resumed.path, world_size=2, directory=resumed.path / "ranks")
    ranks.results()
    assert f"removing {left}" in ranks.output(0)
    assert list((tmp_path / "disk").iterdir()) == []
    values = {entry["step"]: entry["loss"] for entry in entries(killed, "train")}
    values |= {entry["step"]: entry["loss"] for entry in entries(resumed, "train")}
    assert values == {entry["step"]: entry["loss"] for entry in entries(whole, "train")}
    assert min(entry["step"] for entry in entries(resumed, "train")) == checkpoint.manifest.step + 1
    assert resumed.result["held_out_loss"] == whole.result["held_out_loss"]


def test_a_disk_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "disk").write_text("a file")
    attempt = new_attempt(tmp_path / "run", (*ON_DISK, *on_disk(tmp_path / "disk")), world_size=2)
    with pytest.raises(RankFailedError):
        run_ranks(WORKER, attempt.path, world_size=2, directory=attempt.path / "ranks")
    assert f"cannot make {nvme_directory(attempt)}" in failure(attempt, 0)["error"]
    assert (tmp_path / "disk").read_text() == "a file"


def on_disk(disk: Path, offload: str = "all_nvme") -> tuple[str, ...]:
    return (f"offload={offload}", f"offload.nvme_path={disk}")


def nvme_directory(attempt: Attempt) -> Path:
    zero = read_json(attempt.path / "ds_config.json")["zero_optimization"]
    return Path(zero["offload_optimizer"]["nvme_path"])


def largest_sizes(disk: Path, ranks: Ranks) -> dict[Path, int]:
    """The files that were there while ``ranks`` ran, with their largest sizes."""
    sizes: dict[Path, int] = {}
    while any(process.is_alive() for process in ranks.processes):
        for directory, _, names in os.walk(disk):
            for path in (Path(directory, name) for name in names):
                with suppress(FileNotFoundError):
                    sizes[path] = max(sizes.get(path, 0), path.stat().st_size)
        time.sleep(0.02)
    return sizes


def is_of(path: Path, kind: str, rank: int) -> bool:
    return any(kind in part for part in path.parts[-3:]) and f"rank{rank}" in path.parts


def contents(directory: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}
