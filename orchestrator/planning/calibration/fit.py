"""Fits the constants of a cluster to measured steps: robust least squares on logarithms, drawn towards the preset.

The unknowns are the logarithms of the factors on the constants; the residuals are those of predicted over measured seconds, in
units of what a measurement and the model are expected to be wrong by. A factor that the runs say nothing of stays 1: each is
held by a spring as strong as the preset is trusted (a Gaussian prior), so a few runs decide a few constants and no more. Where
speeds are a guess, all may be slower or faster together by much more than one may differ from the others.
Huber's weights bound what a single odd run can do (Huber 1964, "Robust estimation of a location parameter");
Levenberg-Marquardt steps with a numeric Jacobian find the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.planning.calibration.constants import CONSTANTS, Constant, constant_value, with_factors
from orchestrator.planning.cost.step_time import step_parts
from orchestrator.planning.cost.training_step import TrainingStep
from orchestrator.planning.partition import Partition

MODEL_ERROR = 0.05
"""What the cost model is wrong by even with perfect constants, as a share; it keeps one very even run from ruling all."""
HUBER = 1.5
"""Residuals beyond so many standard deviations count linearly."""
LEAST_KNOWLEDGE = 0.5
"""A constant counts as determined if the runs took away this share of what was open about it (of its variance)."""
_LEAST_WEIGHT = 1e-6
_STEP = 1e-3
_MOST_ITERATIONS = 200
_FARTHEST = math.log(1e4)
SLOWER = np.array([1.0 if constant.fields[0].endswith("_seconds") else -1.0 for constant in CONSTANTS])
"""How the logarithms of the constants change when everything takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A finished run: what its steps did and how long they took."""

    name: str
    step: TrainingStep
    partition: Partition
    seconds: float
    """Median of its steady steps."""
    relative_error: float
    """Standard error of that median, as a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A constant after the fit."""

    constant: Constant
    before: float
    after: float
    weight: float
    """The largest share of a run's step that is proportional to it."""
    knowledge: float
    """0: the runs said nothing of it; 1: they alone decide it."""

    @property
    def is_used(self) -> bool:
        """Whether any of the runs depends on it at all."""
        return self.weight > _LEAST_WEIGHT

    @property
    def is_determined(self) -> bool:
        """Whether the runs rather than the preset decide it."""
        return self.knowledge >= LEAST_KNOWLEDGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a fit found. Predictions are in the order of the runs."""

    constants: tuple[FittedConstant, ...]
    predicted_before: tuple[float, ...]
    predicted_after: tuple[float, ...]

    @property
    def factors(self) -> Mapping[str, float]:
        """What each constant that the runs depend on is multiplied by."""
        return {fitted.constant.name: fitted.after / fitted.before for fitted in self.constants if fitted.is_used}


def predicted_seconds(run: MeasuredStep, factors: Mapping[str, float]) -> float:
    """The time of the run's step with its cluster's constants multiplied."""
    step = replace(run.step, cluster=with_factors(run.step.cluster, factors))
    return float(step_parts(step, run.partition).seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How far constants may be from where they start: standard deviations of their logarithms."""

    together: float = 0.0
    """All of them slower, or all faster."""
    alone: float | None = None
    """Each for itself; None = ``Constant.spread``."""

    @property
    def is_bounded(self) -> bool:
        """Whether shares are those of a label, which they cannot exceed."""
        return self.alone is None


def fit_constants(runs: Sequence[MeasuredStep], trust: Trust | None = None) -> Calibration:
    """Fit the constants to ``runs``, whose clusters differ in nothing but their size; ``trust`` None = that in a preset."""
    problem = _Problem(runs, trust or Trust())
    at_preset = np.zeros(len(CONSTANTS))
    starts = [at_preset]
    if trust is not None and trust.together:
        # a guess may be off by orders of magnitude: begin with all speeds as much slower as the runs are
        starts.append(float(np.median(-problem.log_ratios(at_preset))) * SLOWER)
    found = min((problem.minimum(start) for start in starts), key=problem.cost)
    knowledge, weights, factors = problem.knowledge(found), problem.weights(found), problem.factors(found)
    cluster = runs[0].step.cluster
    constants = []
    for index, constant in enumerate(CONSTANTS):
        before = constant_value(cluster, constant)
        fitted = FittedConstant(
            constant=constant, before=before, after=before, weight=float(weights[index]), knowledge=float(knowledge[index])
        )
        constants.append(replace(fitted, after=before * factors[constant.name]) if fitted.is_used else fitted)
    calibration = Calibration(constants=tuple(constants), predicted_before=(), predicted_after=())
    return replace(
        calibration,
        predicted_before=tuple(predicted_seconds(run, {}) for run in runs),
        predicted_after=tuple(predicted_seconds(run, calibration.factors) for run in runs),
    )


class _Problem:
    """Residuals and cost as functions of the logarithms of the factors."""

    def __init__(self, runs: Sequence[MeasuredStep], trust: Trust) -> None:
        self._runs = runs
        self._measured = np.log([run.seconds for run in runs])
        self._errors = np.array([math.hypot(MODEL_ERROR, run.relative_error) for run in runs])
        self._alone = np.array([constant.spread if trust.alone is None else trust.alone for constant in CONSTANTS])
        self._springs = np.linalg.inv(np.diag(self._alone**2) + trust.together**2 * np.outer(SLOWER, SLOWER))
        self._highest = np.full(len(CONSTANTS), _FARTHEST)
        for index, constant in enumerate(CONSTANTS):
            if trust.is_bounded and constant.is_share:
                self._highest[index] = max(0.0, -math.log(constant_value(runs[0].step.cluster, constant)))

    def factors(self, logs: np.ndarray) -> dict[str, float]:
        return {constant.name: float(np.exp(value)) for constant, value in zip(CONSTANTS, logs, strict=True)}

    def log_ratios(self, logs: np.ndarray) -> np.ndarray:
        """Of predicted over measured seconds."""
        factors = self.factors(logs)
        return np.log([predicted_seconds(run, factors) for run in self._runs]) - self._measured

    def cost(self, logs: np.ndarray) -> float:
        residuals = np.abs(self.log_ratios(logs) / self._errors)
        of_runs = np.where(residuals <= HUBER, residuals**2, 2 * HUBER * residuals - HUBER**2)
        return float(of_runs.sum() + logs @ self._springs @ logs)

    def minimum(self, logs: np.ndarray) -> np.ndarray:
        """Levenberg-Marquardt from ``logs``, inside the bounds."""
        damping, cost = 1e-2, self.cost(logs)
        for _ in range(_MOST_ITERATIONS):
            ratios, jacobian = self.log_ratios(logs), self._jacobian(logs)
            weights = self._robust_weights(ratios)
            normal = jacobian.T @ (weights[:, None] * jacobian) + self._springs
            gradient = jacobian.T @ (weights * ratios) + self._springs @ logs
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            tried = np.clip(logs - step, -_FARTHEST, self._highest)
            new_cost = self.cost(tried)
            if new_cost < cost:
                is_done = cost - new_cost < 1e-9 * (1 + cost)
                logs, cost, damping = tried, new_cost, damping / 4
                if is_done:
                    break
            else:
                damping *= 4
                if damping > 1e9:
                    break
        return logs

    def knowledge(self, logs: np.ndarray) -> np.ndarray:
        """Of each constant, the share of its own variance that the runs removed."""
        jacobian = self._jacobian(logs)
        normal = jacobian.T @ (self._robust_weights(self.log_ratios(logs))[:, None] * jacobian) + self._springs
        return np.asarray(np.maximum(0.0, 1 - np.diag(np.linalg.inv(normal)) / self._alone**2))

    def weights(self, logs: np.ndarray) -> np.ndarray:
        """Of each constant, the largest share of a run's step that is proportional to it, or to its inverse."""
        return np.asarray(np.abs(self._jacobian(logs)).max(axis=0))

    def _robust_weights(self, ratios: np.ndarray) -> np.ndarray:
        residuals = np.abs(ratios / self._errors)
        return np.asarray(np.minimum(1, HUBER / np.maximum(residuals, 1e-12)) / self._errors**2)

    def _jacobian(self, logs: np.ndarray) -> np.ndarray:
        """Central differences: the model has kinks, and a one-sided slope would see only one side."""
        columns = []
        for index in range(len(CONSTANTS)):
            move = np.zeros(len(CONSTANTS))
            move[index] = _STEP
            columns.append((self.log_ratios(logs + move) - self.log_ratios(logs - move)) / (2 * _STEP))
        return np.stack(columns, axis=1)
