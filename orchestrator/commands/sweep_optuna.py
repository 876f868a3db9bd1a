"""Hydra's Optuna sweeper with what it lacks: the reason of a trial that failed, and a study that goes on where it stopped.

Loaded only where Optuna is chosen.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.hydra_optuna_sweeper._impl import OptunaSweeperImpl
from hydra_plugins.hydra_optuna_sweeper.optuna_sweeper import OptunaSweeper
from omegaconf import DictConfig
from optuna.trial import TrialState

from orchestrator.commands.sweep_task import PointNotFinishedError
from orchestrator.sweep_point import PointStatus

STATUS, REASON, POINT = "status", "reason", "point"
"""Attributes of a trial without an objective: how its point ended, why, and its directory."""
_NAME = f"{OptunaSweeper.__module__}.{OptunaSweeper.__name__}"
_KILLED = "the sweep was killed"


def install() -> None:
    """Have Hydra make our sweeper where it is told to make its own; its options stay what they are."""
    Plugins.instance().class_name_to_class[_NAME] = RecordingOptunaSweeper


class RecordingOptunaSweeper(OptunaSweeper):
    """Takes the options of Hydra's own."""

    def __init__(self, **options: Any) -> None:
        self.sweeper = _RecordingSweeper(**options)


class _RecordingSweeper(OptunaSweeperImpl):
    """A trial is complete with its point's objective only, and otherwise failed, with its reason."""

    launcher: Launcher | None
    n_trials: int

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        assert self.launcher is not None
        self.launcher = _RecordingLauncher(self.launcher, self)
        self.trials: list[optuna.trial.Trial] = []

    def sweep(self, arguments: list[str]) -> None:
        if self.storage is not None and self.study_name is not None:
            self._go_on()
        try:
            super().sweep(arguments)
        except ValueError:
            # it asks for the best trial even where none is complete
            if not self.trials or any(trial.state is TrialState.COMPLETE for trial in self.trials[0].study.trials):
                raise

    def _configure_trials(self, trials: list[Any], *spaces: Any) -> Sequence[Sequence[str]]:
        self.trials = trials
        overrides: Sequence[Sequence[str]] = super()._configure_trials(trials, *spaces)
        return overrides

    def _go_on(self) -> None:
        """Count what an earlier start has done, and have done first what it left: its points are known by their hashes."""
        directions = self._get_directions()
        study = optuna.create_study(
            study_name=self.study_name, storage=self.storage, directions=directions, load_if_exists=True
        )
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            study._storage.set_trial_user_attr(trial._trial_id, STATUS, PointStatus.interrupted.value)
            study._storage.set_trial_user_attr(trial._trial_id, REASON, _KILLED)
            study.tell(trial.number, state=TrialState.FAIL)
        trials = study.get_trials()
        done = [trial for trial in trials if _is_done(trial)]
        known = [trial.params for trial in done]
        for trial in trials:
            if trial.state is TrialState.FAIL and not _is_done(trial) and trial.params and trial.params not in known:
                known.append(trial.params)
                if not _waits(study, trial.params):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                        study.enqueue_trial(trial.params)
        self.n_trials = max(0, self.n_trials - len(done))


class _RecordingLauncher(Launcher):
    """Passes points on to Hydra's launcher, which is set up, and tells their trials what became of them."""

    def __init__(self, launcher: Launcher, sweeper: _RecordingSweeper) -> None:
        self._launcher = launcher
        self._sweeper = sweeper

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """As Hydra's."""
        self._launcher.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """As Hydra's."""
        returns = [*self._launcher.launch(job_overrides, initial_job_idx=initial_job_idx)]
        for place, (trial, returned) in enumerate(zip(self._sweeper.trials, returns, strict=True)):
            problem = returned._return_value if returned.status is JobStatus.FAILED else None
            if isinstance(problem, PointNotFinishedError):
                for name, value in ((STATUS, problem.status), (REASON, problem.reason), (POINT, problem.directory)):
                    trial.set_user_attr(name, value)
                returns[place] = _WithoutObjective(**vars(returned))
        return returns


class _WithoutObjective(JobReturn):
    """Raises as Hydra's does, but not with a line on standard error: the point has said how it ended."""

    @property  # type: ignore[misc]
    def return_value(self) -> Any:
        """Never there."""
        raise self._return_value


def _is_done(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether running the trial's point again would tell nothing new."""
    return trial.state is TrialState.COMPLETE or trial.user_attrs.get(STATUS) == PointStatus.infeasible.value


def _waits(study: optuna.study.Study, params: dict[str, Any]) -> bool:
    waiting = study.get_trials(states=(TrialState.WAITING,))
    return any(trial.system_attrs.get("fixed_params") == params for trial in waiting)
