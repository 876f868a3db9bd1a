"""Sweeps: what is recorded of each point, what a sweep that goes on runs, and what is refused beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import sweep_point
from orchestrator.commands import sweep, sweep_places
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.launch.locks import locked
from orchestrator.sweep_point import read_points
from tests.unit.commands.sweep_runs import SMOKE, KilledError, Runs, runs, statuses, swept

__all__ = ["runs"]
GRID = (*SMOKE, "training.train_batch_size=8", "zero=stage1,stage2", "training.train_micro_batch_size_per_gpu=1,3,8")
RESUME = ("command=launch", "sweep.resume=true")


def cell(config: RunConfig) -> tuple[int, int | None]:
    return config.zero.stage, config.training.train_micro_batch_size_per_gpu


def test_every_point_has_its_record_and_none_ends_the_sweep(tmp_path: Path, runs: Runs) -> None:
    runs.behaviour = lambda config: "failed" if cell(config) == (1, 8) else "completed"
    said: list[str] = []
    result = swept(tmp_path / "sweep", *GRID, said=said)
    assert statuses(result) == ["finished", "infeasible", "failed", "finished", "infeasible", "finished"]
    assert result.exit_code == 4
    assert len(runs.started) == 4, "what cannot fit costs nothing"
    records = [json.loads((tmp_path / "sweep" / str(number) / "point.json").read_text()) for number in range(6)]
    assert records[0]["overrides"] == ["experiment=smoke", "preflight=none", "cluster.devices_per_host=1",
                                       "training.train_batch_size=8", "zero=stage1",
                                       "training.train_micro_batch_size_per_gpu=1"]  # fmt: skip
    assert (records[0]["metric_name"], records[0]["exit_code"]) == ("held_out_loss", 0)
    assert "micro-batch 3" in records[1]["reason"]
    assert records[1]["exit_code"] == 2
    assert "no luck" in records[2]["reason"]
    assert len({config.run_dir for config in runs.started}) == 4
    assert not list((tmp_path / "sweep").glob("*/hydra"))
    assert any("point 1: infeasible: training.train_batch_size" in line for line in said)


def test_only_infeasible_points_are_no_failure(tmp_path: Path, runs: Runs) -> None:
    result = swept(tmp_path / "sweep", *SMOKE, "training.train_micro_batch_size_per_gpu=2,3")
    assert (result.exit_code, statuses(result)) == (0, ["finished", "infeasible"])
    assert len(runs.started) == 1


def test_a_killed_sweep_goes_on_with_what_is_missing(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere, with nothing but its directory: the failed and the killed point run again, beside what they left."""
    runs.behaviour = lambda config: {(1, 8): "failed", (2, 1): "killed"}.get(cell(config), "completed")
    with pytest.raises(KilledError):
        swept(tmp_path / "sweep", *GRID)
    assert [cell(config) for config in runs.started] == [(1, 1), (1, 8), (2, 1)]
    runs.started.clear()
    runs.behaviour = lambda _config: "completed"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = swept(tmp_path / "sweep", *RESUME)
    assert [cell(config) for config in runs.started] == [(1, 8), (2, 1), (2, 8)]
    assert statuses(result) == ["finished", "infeasible", "finished"] * 2
    assert result.exit_code == 0
    assert [path.name for path in read_points(tmp_path / "sweep")] == [str(number) for number in range(6)]
    assert sorted(path.name for path in (tmp_path / "sweep" / "3" / "attempts").iterdir()) == ["1", "2"]


def test_a_point_that_ended_unrecorded_is_not_run_again(tmp_path: Path, runs: Runs) -> None:
    swept(tmp_path / "sweep", *SMOKE, "seed=1,2")
    (record,) = [path / "point.json" for path in (tmp_path / "sweep" / "1",)]
    record.write_text(record.read_text().replace('"finished"', '"running"'))
    result = swept(tmp_path / "sweep", *RESUME)
    assert (len(runs.started), statuses(result)) == (2, ["finished", "finished"])


def test_a_project_that_was_moved_still_has_its_points(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old" / "conf").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "old")
    swept(Path("sweep"), *SMOKE, "data.cache_dir=cache", "seed=1,2", config_dir=Path("conf"))
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new")
    with pytest.raises(ConfigurationError, match="old/conf, which is no longer there"):
        swept(Path("sweep"), *RESUME)
    result = swept(Path("sweep"), *RESUME, config_dir=Path("conf"))
    assert (result.exit_code, statuses(result), len(runs.started)) == (0, ["finished", "finished"], 2)
    assert {config.data.cache_dir for config in runs.started} == {str(tmp_path / "old" / "cache")}


def test_other_words_make_further_points_and_overwrite_none(tmp_path: Path, runs: Runs) -> None:
    swept(tmp_path / "sweep", *SMOKE, "seed=1,2")
    result = swept(tmp_path / "sweep", *RESUME, "seed=3,2,1")
    assert len(runs.started) == 3
    assert {path.name: point.overrides[-1] for path, point in read_points(tmp_path / "sweep").items()} == {
        "0": "seed=1",
        "1": "seed=2",
        "2": "seed=3",
    }
    assert result.exit_code == 0


def test_an_interruption_ends_the_sweep_and_is_recorded(tmp_path: Path, runs: Runs) -> None:
    runs.behaviour = lambda config: "interrupted" if config.seed == 2 else "completed"
    result = swept(tmp_path / "sweep", *SMOKE, "seed=1,2,3")
    assert (result.exit_code, statuses(result)) == (130, ["finished", "interrupted"])


def test_a_glob_makes_a_point_of_every_option_of_a_group(tmp_path: Path, runs: Runs) -> None:
    result = swept(tmp_path / "sweep", *SMOKE, "zero=glob(*,exclude=[stage2,stage3])")
    assert [point["overrides"][-1] for point in result.payload["points"]] == ["zero=stage0", "zero=stage1"]
    assert len(runs.started) == 2


def test_the_same_configuration_twice_is_run_once(tmp_path: Path, runs: Runs) -> None:
    runs.behaviour = lambda _config: "failed"
    result = swept(tmp_path / "sweep", *SMOKE, "training.max_steps=5,5", "hydra.sweeper.max_batch_size=1")
    assert (len(runs.started), statuses(result)) == (1, ["failed"])


@pytest.mark.parametrize(("view", "shown"), [("lines", True), ("quiet", False)])
def test_progress_is_told_unless_it_is_to_be_quiet(tmp_path: Path, runs: Runs, view: str, shown: bool) -> None:
    said: list[str] = []
    swept(tmp_path / "sweep", *SMOKE, f"view={view}", said=said)
    assert ("point 0: step 1/5" in said) == shown
    assert runs.started


def test_the_best_point_is_that_of_the_stated_direction(tmp_path: Path, runs: Runs) -> None:
    words = (*SMOKE, "optimizer.lr=0.1,0.3,0.2")
    assert swept(tmp_path / "least", *words).payload["best"] == 0
    assert swept(tmp_path / "most", *words, "sweep.direction=maximize").payload["best"] == 1
    assert runs.started


def test_an_unknown_objective_fails_the_point_and_can_be_mended_without_running_it(tmp_path: Path, runs: Runs) -> None:
    result = swept(tmp_path / "sweep", *SMOKE, "seed=1,2", "sweep.metric=held_out_los")
    assert (result.exit_code, statuses(result)) == (4, ["failed", "failed"])
    assert "did you mean held_out_loss? it has: held_out_loss, loss" in result.payload["points"][0]["reason"]
    mended = swept(tmp_path / "sweep", *RESUME, "sweep.metric=held_out_loss")
    assert (mended.exit_code, statuses(mended), len(runs.started)) == (0, ["finished", "finished"], 2)


def test_points_that_were_handed_over_are_looked_at_when_the_sweep_goes_on(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Slurm job each: those that wait are left alone, and those that have ended are what they became."""
    runs.behaviour = lambda config: "submitted" if config.seed < 3 else "completed"
    monkeypatch.setattr(sweep_places, "_is_handed_over", lambda _directory: True)
    result = swept(tmp_path / "sweep", *SMOKE, "seed=1,2,3")
    assert (result.exit_code, statuses(result)) == (0, ["running", "running", "finished"])
    runs.finish(tmp_path / "sweep" / "1")
    result = swept(tmp_path / "sweep", *RESUME)
    assert (result.exit_code, statuses(result), len(runs.started)) == (0, ["running", "finished", "finished"], 3)


def test_a_bug_in_one_point_is_the_end_of_that_point_only(tmp_path: Path, runs: Runs) -> None:
    def behaviour(config: RunConfig) -> str:
        if config.seed == 1:
            raise OSError("no space left on device")
        return "completed"

    runs.behaviour = behaviour
    result = swept(tmp_path / "sweep", *SMOKE, "seed=1,2")
    assert (result.exit_code, statuses(result)) == (4, ["failed", "finished"])
    assert "no space left" in result.payload["points"][0]["reason"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("run_dir=here",), "run_dir"),
        (("dry_run=true",), "dry_run"),
        (("checkpoint.resume=true",), "checkpoint.resume"),
        (("sweep.resume=true",), "hydra.sweep.dir"),
        (("zero.stge=1,2",), "zero.stge"),
        (("zero=stage1,stage9",), "zero"),
        (("sweep=zero_stages,micro_batches",), "sweep=zero_stages"),
        (("sweep=joblib,learning_rates",), "sweep=joblib"),
        (("hydra/sweeper=optuna", "sweep.direction=maximize"), "hydra.sweeper.direction"),
        (("hydra/sweeper=optuna", "hydra.sweeper.storage=sqlite:///x.db"), "hydra.sweeper.study_name"),
        (("hydra/sweeper=nevergrad",), "config"),
        (("zero=glob(stage9*)",), "zero"),
        (("model=glob(*)",), "model"),
        (("seed=range(5,1)",), "seed"),
        (("optimizer.lr=interval(0.1,0.2)",), "optimizer.lr"),
        (("hydra.sweep.dir=${nowhere}",), "config"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_and_leaves_nothing(
    tmp_path: Path, runs: Runs, words: tuple[str, ...], field: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        sweep.prepare([f"hydra.sweep.dir={tmp_path / 'sweep'}", *SMOKE, *words], config_dir=None)
    assert field in [finding.field for finding in refused.value.findings]
    assert not runs.started
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("params", ["{optimizer.lrr: '0.1,0.2'}", "{zero: 'stage1,stage9'}", "{seed: 'choice(1'}"])
def test_what_a_file_has_swept_is_checked_like_words(tmp_path: Path, params: str) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "own.yaml").write_text(f"# @package _global_\nhydra: {{sweeper: {{params: {params}}}}}\n")
    with pytest.raises(ConfigurationError) as refused:
        sweep.prepare([f"hydra.sweep.dir={tmp_path / 'new'}", *SMOKE, "sweep=own"], config_dir=tmp_path)
    assert refused.value.findings[0].field in params


def test_a_directory_that_cannot_be_made_is_refused_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for parent in (tmp_path / "file", Path("/proc")):
        with pytest.raises(ConfigurationError) as refused:
            swept(parent / "sweep", *SMOKE, "seed=1,2")
        assert [finding.field for finding in refused.value.findings] == ["hydra.sweep.dir"]


def test_two_sweeps_started_at_once_do_not_share_a_directory(tmp_path: Path, runs: Runs) -> None:
    """As two of a shell's loop, whose default directories are named by the second."""
    words = (f"hydra.sweep.dir={tmp_path / 'sweep'}", *SMOKE)
    first, second = (sweep.prepare([*words, f"seed={seed}"], config_dir=None) for seed in "12")
    with locked(tmp_path / "sweep" / ".locks" / "sweep"), pytest.raises(ConfigurationError, match="a sweep is running"):
        sweep.run(first, print)
    assert sweep.run(first, print).exit_code == 0
    with pytest.raises(ConfigurationError, match="already holds a sweep"):
        sweep.run(second, print)
    assert [config.seed for config in runs.started] == [1]


def test_a_full_disk_is_said_and_the_sweep_goes_on_later(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    written = sweep_point.write_json

    def write(path: Path, value: object) -> None:
        if len(runs.started) == 2:
            raise OSError(28, "No space left on device")
        written(path, value)

    with monkeypatch.context() as full:
        full.setattr(sweep_point, "write_json", write)
        result = swept(tmp_path / "sweep", *SMOKE, "seed=1,2")
    assert (result.exit_code, statuses(result)) == (4, ["finished", "running"])
    assert "No space left" in result.payload["message"]
    assert (swept(tmp_path / "sweep", *RESUME).exit_code, len(runs.started)) == (0, 2)


def test_a_directory_with_a_sweep_is_not_used_for_another(tmp_path: Path, runs: Runs) -> None:
    swept(tmp_path / "sweep", *SMOKE, "seed=1")
    with pytest.raises(ConfigurationError, match="already holds a sweep"):
        swept(tmp_path / "sweep", *SMOKE, "seed=2")
    with locked(tmp_path / "sweep" / ".locks" / "sweep"), pytest.raises(ConfigurationError, match="a sweep is running"):
        swept(tmp_path / "sweep", *RESUME)
    (tmp_path / "sweep" / "0" / "point.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is damaged"):
        swept(tmp_path / "sweep", *RESUME)
    assert len(runs.started) == 1


def test_a_plugin_that_is_missing_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra.core.config_store import ConfigStore

    launchers = ConfigStore.instance().repo["hydra"]["launcher"]
    monkeypatch.delitem(launchers, "joblib.yaml", raising=False)
    with pytest.raises(ConfigurationError, match="joblib needs a plugin") as refused:
        swept(tmp_path / "sweep", *SMOKE, "hydra/launcher=joblib")
    assert "orchestrator[sweep]" in refused.value.findings[0].fix
