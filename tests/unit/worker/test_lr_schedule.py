"""The learning rate that a user reads in the metrics."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import LrSchedule
from orchestrator.config.schema import LrSchedulerConfig
from orchestrator.worker.lr_schedule import learning_rate

PEAK = 1.0


def rates(schedule: LrSchedulerConfig, *, max_steps: int) -> list[float]:
    return [learning_rate(step, peak=PEAK, schedule=schedule, max_steps=max_steps) for step in range(max_steps)]


@pytest.mark.parametrize("shape", list(LrSchedule))
def test_warmup_is_linear_and_reaches_the_peak_at_its_last_step(shape):
    assert rates(LrSchedulerConfig(type=shape, warmup_steps=4), max_steps=40)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_constant_stays_at_the_peak():
    assert rates(LrSchedulerConfig(type=LrSchedule.constant, min_lr=0.5), max_steps=5) == [PEAK] * 5


def test_cosine_falls_to_the_minimum_at_the_last_step():
    values = rates(LrSchedulerConfig(type=LrSchedule.cosine, warmup_steps=2, min_lr=0.1), max_steps=10)
    assert values[5] == pytest.approx(0.55)  # half of the way between the end of the warmup and the last step
    assert values[-1] == pytest.approx(0.1)
    assert values[1:] == sorted(values[1:], reverse=True)


def test_wsd_is_flat_then_linear_to_the_minimum():
    values = rates(LrSchedulerConfig(type=LrSchedule.wsd, warmup_steps=1, min_lr=0.2, decay_steps=4), max_steps=10)
    assert values[:6] == [PEAK] * 6
    assert values[6:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_wsd_decays_over_a_tenth_of_the_run_unless_told_otherwise():
    values = rates(LrSchedulerConfig(type=LrSchedule.wsd), max_steps=100)
    assert values[89] == PEAK
    assert values[90] == pytest.approx(0.9)
    assert values[-1] == pytest.approx(0.0)


def test_a_run_that_is_shorter_than_its_warmup_never_reaches_the_peak():
    assert rates(LrSchedulerConfig(warmup_steps=10), max_steps=3) == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("shape", list(LrSchedule))
def test_steps_beyond_the_last_keep_its_rate(shape):
    schedule = LrSchedulerConfig(type=shape, min_lr=0.25, decay_steps=2)
    last, beyond = (learning_rate(step, peak=PEAK, schedule=schedule, max_steps=8) for step in (7, 70))
    assert beyond == last
