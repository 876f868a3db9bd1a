"""The order of passes against the generators that DeepSpeed's pipeline engine runs."""

from __future__ import annotations

import itertools

import pytest
from deepspeed.runtime.pipe.schedule import BackwardPass, CommitP2P, DualPipeVSchedule, ForwardPass, TrainSchedule

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.schedule import Instruction, Schedule, executed_instructions, in_flight, schedule_steps
from orchestrator.planning.schedules.steps import Kind

KINDS = {ForwardPass: Kind.forward, BackwardPass: Kind.backward}
ONE_F_ONE_B = list(itertools.product(range(1, 7), range(1, 15)))
DUAL_PIPE_V = [(stages, 2 * stages + extra) for stages in range(1, 6) for extra in (0, 1, 2, 7)]


class NumberedBuffers(TrainSchedule):
    """With a buffer for every micro-batch, the buffer's number is that of the micro-batch."""

    def num_pipe_buffers(self):
        return self.micro_batches


def passes(instructions, micro_batches):
    return [
        Instruction(
            kind=KINDS[type(instruction)],
            micro_batch=instruction.buffer_id % micro_batches,
            phase=instruction.buffer_id // micro_batches,
        )
        for instruction in instructions
        if type(instruction) in KINDS
    ]


@pytest.mark.parametrize(("num_stages", "micro_batches"), ONE_F_ONE_B)
def test_1f1b_runs_the_passes_of_deepspeeds_train_schedule(num_stages, micro_batches):
    for stage in range(num_stages):
        theirs = itertools.chain.from_iterable(NumberedBuffers(micro_batches, num_stages, stage).steps())
        sizes = {"num_stages": num_stages, "micro_batches": micro_batches, "stage": stage}
        ours = executed_instructions(PipelineSchedule.one_f_one_b, **sizes)
        assert list(ours) == passes(theirs, micro_batches)
        buffers = TrainSchedule(micro_batches, num_stages, stage).num_pipe_buffers()
        assert buffers == max(2, in_flight(Schedule.one_f_one_b, **sizes))


@pytest.mark.parametrize(("num_stages", "micro_batches"), DUAL_PIPE_V)
def test_dual_pipe_v_runs_the_passes_of_deepspeeds_schedule(num_stages, micro_batches):
    for stage in range(num_stages):
        theirs = itertools.chain.from_iterable(DualPipeVSchedule(micro_batches, num_stages, stage).steps())
        sizes = {"num_stages": num_stages, "micro_batches": micro_batches, "stage": stage}
        ours = executed_instructions(PipelineSchedule.dual_pipe_v, **sizes)
        assert list(ours) == passes(theirs, micro_batches)


@pytest.mark.parametrize(("num_stages", "micro_batches"), DUAL_PIPE_V)
def test_pairs_are_the_passes_between_two_exchanges_of_deepspeeds_schedule(num_stages, micro_batches):
    for stage in range(num_stages):
        steps = schedule_steps(Schedule.dual_pipe_v, num_stages=num_stages, micro_batches=micro_batches, stage=stage)
        theirs = itertools.chain.from_iterable(DualPipeVSchedule(micro_batches, num_stages, stage).steps())
        between = [[]]
        for instruction in theirs:
            if isinstance(instruction, CommitP2P):
                between.append([])
            between[-1].append(instruction)
        pairs = [tuple(both) for group in between if len(both := passes(group, micro_batches)) == 2]
        ours = executed_instructions(
            PipelineSchedule.dual_pipe_v, num_stages=num_stages, micro_batches=micro_batches, stage=stage
        )
        assert pairs == [(ours[i], ours[i + 1]) for i, step in enumerate(steps) if step.overlaps_next]


def test_gpipe_runs_all_forward_passes_then_all_backward_passes_from_the_first_micro_batch_on():
    for stage in range(3):
        ours = executed_instructions(PipelineSchedule.gpipe, num_stages=3, micro_batches=2, stage=stage)
        assert list(ours) == [
            Instruction(Kind.forward, 0, 0),
            Instruction(Kind.forward, 1, 0),
            Instruction(Kind.backward, 0, 0),
            Instruction(Kind.backward, 1, 0),
        ]
