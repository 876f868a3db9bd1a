"""The bubble of a pipeline, counted with a clock that the test sets."""

from __future__ import annotations

import pytest

from orchestrator.planning.schedule import Schedule, bubble_fraction, replay_schedule
from orchestrator.planning.schedules.replay import PassSeconds
from orchestrator.worker.bubble import StageTimes

SECONDS = PassSeconds(forward=1.0, backward_input=1.0, backward_weight=1.0)


class SetClock:
    """A clock that stands where it was set; ``read`` counts how often marks were compared."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read = 0

    def mark(self) -> float:
        return self.now

    def seconds(self, start: float, end: float) -> float:
        self.read += 1
        return end - start


@pytest.mark.parametrize("schedule", [Schedule.one_f_one_b, Schedule.gpipe, Schedule.dual_pipe_v])
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_that_keep_to_the_schedule_measure_its_bubble(schedule: Schedule, stages: int) -> None:
    timeline = replay_schedule(schedule, num_stages=stages, micro_batches=8, seconds=SECONDS)
    taken = []
    for steps in timeline.stages:
        clock = SetClock()
        times = StageTimes(clock)
        for begun in (0.0, 1000.0):
            clock.now = begun
            times.begin()
            for timed in steps:
                if timed.step.overlaps_next:
                    continue  # it takes its time together with the next
                clock.now = begun + timed.start
                with times.working():
                    clock.now = begun + timed.end
        taken.append(times.take())
    busy = sum(busy for busy, _ in taken) / stages
    theory = bubble_fraction(schedule, num_stages=stages, micro_batches=8, seconds=SECONDS)
    assert 1 - busy / taken[0][1] == pytest.approx(theory)
    assert taken[0][1] == pytest.approx(2 * timeline.seconds), "the first stage begins first and ends last"


def test_marks_are_read_once_the_next_step_begins_and_only_taken_once() -> None:
    clock = SetClock()
    times = StageTimes(clock)
    times.begin()
    with times.working():
        clock.now = 3.0
    assert clock.read == 0, "reading a mark would wait for the device"
    times.begin()
    assert clock.read == 2
    assert times.take() == (3.0, 3.0)
    assert times.take() == (0.0, 0.0)
