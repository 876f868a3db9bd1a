"""Sweeps whose points Optuna chooses: what its study learns, and how it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands.sweep_optuna import POINT, REASON, STATUS
from tests.unit.commands.sweep_runs import SMOKE, KilledError, Runs, runs, statuses, swept

optuna = pytest.importorskip("optuna")
__all__ = ["runs"]
GRID = (
    *SMOKE,
    "hydra/sweeper=optuna",
    "hydra/sweeper/sampler=grid",
    "hydra.sweeper.study_name=sweep",
    "zero=stage1,stage2,stage3",
    "training.train_micro_batch_size_per_gpu=1,3",
)


def study(sweep_dir: Path) -> optuna.study.Study:
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep_dir}/optuna.db")


def test_a_trial_without_objective_fails_with_its_reason_and_the_study_goes_on(
    tmp_path: Path, runs: Runs, capfd: pytest.CaptureFixture[str]
) -> None:
    runs.behaviour = lambda config: "failed" if config.zero.stage == 2 else "completed"
    result = swept(tmp_path, *GRID, f"hydra.sweeper.storage=sqlite:///{tmp_path}/optuna.db")
    assert result.exit_code == 4
    assert "Error executing job" not in capfd.readouterr().err
    assert sorted(statuses(result)) == ["failed", "finished", "finished", "infeasible", "infeasible", "infeasible"]
    trials = study(tmp_path).trials
    states = [trial.state.name for trial in trials]
    assert (states.count("COMPLETE"), states.count("FAIL"), len(states)) == (2, 4, 6)
    for trial in trials:
        if trial.state.name == "FAIL":
            expected = "infeasible" if trial.params["training.train_micro_batch_size_per_gpu"] == 3 else "failed"
            assert trial.user_attrs[STATUS] == expected
            assert ("micro-batch 3" if expected == "infeasible" else "no luck") in trial.user_attrs[REASON]
            assert (Path(trial.user_attrs[POINT]) / "point.json").is_file()


def test_a_study_without_any_objective_ends_without_an_error(tmp_path: Path, runs: Runs) -> None:
    result = swept(tmp_path, *SMOKE, "sweep=optuna", "hydra.sweeper.n_trials=2", "training.train_micro_batch_size_per_gpu=3")
    assert (result.exit_code, result.payload["best"], result.payload["message"]) == (0, None, None)
    assert set(statuses(result)) == {"infeasible"}
    assert not runs.started


def test_a_killed_study_goes_on_until_it_has_its_trials(tmp_path: Path, runs: Runs) -> None:
    """The trial that was killed runs again; those that are complete, or cannot fit, do not."""
    words = (*SMOKE, "sweep=optuna", "hydra.sweeper.n_trials=5", "training.train_micro_batch_size_per_gpu=2")
    runs.behaviour = lambda _config: "killed" if len(runs.started) == 3 else "completed"
    with pytest.raises(KilledError):
        swept(tmp_path, *words)
    killed = runs.started[-1]
    runs.behaviour = lambda _config: "completed"
    result = swept(tmp_path, "command=launch", "sweep.resume=true")
    assert (result.exit_code, statuses(result)) == (0, ["finished"] * 5)
    assert len(runs.started) == 6
    assert runs.started[3].optimizer.lr == killed.optimizer.lr
    states = [trial.state.name for trial in study(tmp_path).trials]
    assert (states.count("COMPLETE"), states.count("FAIL")) == (5, 1)
    assert result.payload["points"][result.payload["best"]]["metric"] == study(tmp_path).best_value


def test_without_a_storage_a_seeded_study_draws_the_same_points_again(tmp_path: Path, runs: Runs) -> None:
    words = (
        *SMOKE,
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.sampler.seed=3",
        "hydra.sweeper.n_trials=3",
    )
    swept(tmp_path, *words, "optimizer.lr=interval(0.1,0.2)")
    result = swept(tmp_path, "command=launch", "sweep.resume=true", "hydra.sweeper.n_trials=4")
    assert statuses(result) == ["finished"] * 4
    assert len(runs.started) == 4
