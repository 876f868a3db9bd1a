"""The pipeline engine does what the planner says that it does, pass by pass."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import PipelineSchedule
from orchestrator.planning.schedule import executed_instructions
from tests.distributed.attempts import new_attempt
from tests.distributed.ranks import run_ranks

FUNCTION = "tests.distributed.schedule_ranks:executed_passes"


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches"),
    [
        ("one_f_one_b", 2, 1),
        ("one_f_one_b", 2, 8),
        ("one_f_one_b", 4, 8),
        ("gpipe", 2, 4),
        ("gpipe", 4, 8),
        ("dual_pipe_v", 2, 4),
        ("dual_pipe_v", 2, 8),
        ("dual_pipe_v", 4, 8),
    ],
)
def test_every_stage_runs_the_planned_passes_in_their_order(tmp_path, schedule, stages, micro_batches):
    options = (
        f"parallelism.pipeline_parallel_size={stages}",
        f"parallelism.schedule={schedule}",
        "model.num_hidden_layers=8",
        f"training.gradient_accumulation_steps={micro_batches}",
        "training.train_micro_batch_size_per_gpu=null",
    )
    attempt = new_attempt(tmp_path / "run", options, world_size=stages)
    executed = run_ranks(FUNCTION, attempt.path, world_size=stages, directory=tmp_path / "ranks")
    assert len({bubble for _, bubble in executed}) == 1, "the stages agree on the bubble"
    assert 0 < executed[0][1] < 1
    for stage, (passes, _) in enumerate(executed):
        planned = executed_instructions(PipelineSchedule(schedule), num_stages=stages, micro_batches=micro_batches, stage=stage)
        assert passes == [(str(step.kind), step.micro_batch, step.phase) for step in planned]
