"""The records of sweeps, and what makes two points the same."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.config.load import load_config
from orchestrator.run_dir import write_json
from orchestrator.sweep_point import PointStatus, Sweep, SweepPoint, config_hash, read_point, read_points, read_sweep

POINT = SweepPoint(
    number=10,
    overrides=("zero=stage2",),
    config_hash="0123456789abcdef",
    status=PointStatus.finished,
    metric=0.5,
    metric_name="held_out_loss",
    exit_code=0,
    started=1.0,
    ended=2.0,
)


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    sweep = Sweep(overrides=("zero=stage1,stage2",), metric=None, direction="minimize", created=1.0, working_directory="/")
    sweep.write(tmp_path)
    POINT.write(tmp_path / "10")
    assert read_sweep(tmp_path) == sweep
    assert read_point(tmp_path / "10") == POINT
    assert (read_sweep(tmp_path / "10"), read_point(tmp_path)) == (None, None)


def test_what_another_version_has_added_is_left_out(tmp_path: Path) -> None:
    sweep = Sweep(overrides=(), metric=None, direction="minimize", created=1.0, working_directory="/")
    write_json(tmp_path / "sweep.json", {**asdict(sweep), "added": 1})
    write_json(tmp_path / "point.json", {**asdict(POINT), "added": {}})
    assert (read_sweep(tmp_path), read_point(tmp_path)) == (sweep, POINT)


def test_points_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        replace(POINT, number=number).write(tmp_path / str(number))
    assert [path.name for path in read_points(tmp_path)] == ["9", "10", "100"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "point.json").write_text('{"number": 1}')
    with pytest.raises(ValueError, match=r"point\.json is damaged"):
        read_point(tmp_path)


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("run_dir=elsewhere", True),
        ("output=json", True),
        ("view=quiet", True),
        ("sweep.resume=true", True),
        ("sweep.metric=loss", True),
        ("checkpoint.resume=true", True),
        ("tracking=none", True),
        ("launcher.hang_timeout=5", True),
        ("launcher.environment.NCCL_ALGO=Ring", False),
        ("zero=stage2", False),
        ("training.max_steps=7", False),
        ("checkpoint.save_every=7", False),
        ("seed=2", False),
    ],
)
def test_a_point_is_known_by_what_it_trains(word: str, same: bool) -> None:
    before, after = (config_hash(asdict(load_config(["command=launch", *words]))) for words in ([], [word]))
    assert (before == after) == same
