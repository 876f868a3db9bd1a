"""Disk of checkpoints."""

from __future__ import annotations

import pytest

from orchestrator.config.enums import OffloadDevice, Precision
from tests.unit.planning.configurations import plan_of, run_config


def checkpoints_of(**changes):
    plan = plan_of(run_config(**changes))
    assert plan.memory is not None, plan.findings
    return plan.memory.checkpoints, plan.model.num_parameters


@pytest.mark.parametrize(
    ("changes", "bytes_per_parameter"),
    [
        ({"zero__stage": 1}, 14),
        ({"zero__stage": 2}, 14),
        ({"zero__stage": 3}, 12),
        ({"zero__stage": 0, "precision__dtype": Precision.fp16}, 14),
        ({"zero__stage": 0, "precision__dtype": Precision.fp32}, 12),
        ({"zero__stage": 1, "parallelism__tensor_parallel_size": 2}, 14),
        ({"zero__stage": 1, "parallelism__pipeline_parallel_size": 4}, 14),
        ({"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu}, 12),
    ],
)
def test_a_checkpoint_is_as_large_as_its_layout_makes_it(changes, bytes_per_parameter):
    disk, parameters = checkpoints_of(**changes)
    assert disk.checkpoint_bytes / parameters == pytest.approx(bytes_per_parameter, rel=0.001)


@pytest.mark.parametrize(
    ("save_every", "save_at_end", "keep", "max_steps", "kept", "at_once"),
    [
        (0, True, 2, 100, 1, 1),
        (0, False, 2, 100, 0, 0),
        (10, True, 2, 100, 2, 3),
        (10, True, 0, 100, 10, 10),
        (30, True, 0, 100, 4, 4),
        (50, False, 5, 100, 2, 2),
    ],
)
def test_as_many_as_are_kept_and_the_next(save_every, save_at_end, keep, max_steps, kept, at_once):
    disk, _ = checkpoints_of(
        checkpoint__save_every=save_every,
        checkpoint__save_at_end=save_at_end,
        checkpoint__keep=keep,
        training__max_steps=max_steps,
    )
    assert disk.kept_bytes == kept * disk.checkpoint_bytes
    assert disk.peak_bytes == at_once * disk.checkpoint_bytes
    assert disk.to_dict()["peak_bytes"] == disk.peak_bytes


@pytest.mark.parametrize(
    ("evaluate_every", "save_every", "save_at_end", "keep", "kept", "at_once"),
    [
        (10, 10, True, 2, 3, 4),
        (10, 0, True, 2, 3, 4),
        (10, 0, True, 0, 10, 10),
        (20, 50, False, 0, 6, 6),
        (0, 0, False, 2, 1, 1),
    ],
)
def test_the_best_is_one_more(evaluate_every, save_every, save_at_end, keep, kept, at_once):
    """At most: each evaluation may be the best so far. The last of 100 steps is always evaluated."""
    disk, _ = checkpoints_of(
        checkpoint__keep_best=True,
        checkpoint__save_every=save_every,
        checkpoint__save_at_end=save_at_end,
        checkpoint__keep=keep,
        training__max_steps=100,
        training__evaluate_every=evaluate_every,
    )
    assert disk.kept_bytes == kept * disk.checkpoint_bytes
    assert disk.peak_bytes == at_once * disk.checkpoint_bytes
