"""How well predicted step times follow measured ones: errors, one scale factor, ranks, and the layouts that would be picked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors as shares of the measured time, of the rows that were predicted."""

    mean: float
    median: float
    p90: float
    bias: float
    """Mean signed error: above 0 the prediction is too slow."""
    mean_scaled: float
    """Mean error when each prediction is multiplied by a factor fitted on the other rows."""
    rank_correlation: float | None
    """Spearman's, of all rows; ``None`` where there are fewer than two or all are equal."""


def errors(predicted: Sequence[float], measured: Sequence[float]) -> Errors:
    """The errors of one source; at least one pair."""
    signed = [guess / truth - 1 for guess, truth in zip(predicted, measured, strict=True)]
    sizes = sorted(abs(error) for error in signed)
    return Errors(
        mean=statistics.fmean(sizes),
        median=statistics.median(sizes),
        p90=percentile(sizes, 0.9),
        bias=statistics.fmean(signed),
        mean_scaled=mean_scaled_error(predicted, measured),
        rank_correlation=rank_correlation(predicted, measured),
    )


def mean_scaled_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Mean error with the median ratio of the other rows as the scale of each; a single row keeps its own error."""
    ratios = sorted(truth / guess for guess, truth in zip(predicted, measured, strict=True))
    if len(ratios) == 1:
        return abs(1 / ratios[0] - 1)
    found = []
    for guess, truth in zip(predicted, measured, strict=True):
        others = list(ratios)
        others.remove(truth / guess)
        found.append(abs(statistics.median(others) * guess / truth - 1))
    return statistics.fmean(found)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the values do not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -(-round(share * 1000) * len(ordered) // 1000) - 1))]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank."""
    if len(left) < 2 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """What picking one layout of a group costs."""

    regret: float
    """Measured time of the layout that is picked, over that of the best, minus one."""
    is_best: bool
    best_in_top: bool
    """Whether the best measured layout is among the first three of the order, behind those that are equal in it."""
    rank_correlation: float | None


def pick(order: Sequence[float], measured: Sequence[float]) -> Pick:
    """What follows from taking the layout with the least ``order``; of equal ones the expected regret."""
    best = min(measured)
    least = min(order)
    taken = [truth for value, truth in zip(order, measured, strict=True) if value == least]
    place = min(range(len(measured)), key=lambda index: measured[index])
    up_to_it = sum(value <= order[place] for value in order)
    return Pick(
        regret=statistics.fmean(taken) / best - 1,
        is_best=taken == [best],
        best_in_top=up_to_it <= TOP,
        rank_correlation=rank_correlation(order, measured),
    )


def random_regret(measured: Sequence[float]) -> float:
    """Expected regret of a layout taken at random."""
    return statistics.fmean(measured) / min(measured) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PickSummary:
    """Picks of the groups of a source."""

    groups: int
    regret_mean: float
    regret_max: float
    top1: float
    top3: float
    rank_correlation_min: float | None


def summarize_picks(picks: Sequence[Pick]) -> PickSummary:
    """The picks together; at least one."""
    regrets = [found.regret for found in picks]
    correlations = [found.rank_correlation for found in picks if found.rank_correlation is not None]
    return PickSummary(
        groups=len(picks),
        regret_mean=statistics.fmean(regrets),
        regret_max=max(regrets),
        top1=statistics.fmean(found.is_best for found in picks),
        top3=statistics.fmean(found.best_in_top for found in picks),
        rank_correlation_min=min(correlations) if correlations else None,
    )
