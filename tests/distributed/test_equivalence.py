"""One training, many ways: every layout, ZeRO stage and split of the batch follows the same loss curve."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from tests.distributed.attempts import curve, entries, largest_relative_difference, new_attempt, trained
from tests.distributed.ranks import run_ranks

TOLERANCE = 1e-4
MASKED = ("data.ignore_fraction=0.4", "training.gradient_clipping=0.1", "optimizer.lr=3e-2", "optimizer.weight_decay=1")
MICRO_BATCHES = (4, 2, 1)
STAGES = (0, 1, 2, 3)

FAMILIES = {
    "gpt2": ("model.family=gpt2", "model.num_key_value_heads=null", "model.tie_word_embeddings=true"),
    "gpt_neox": ("model.family=gpt_neox", "model.num_key_value_heads=null"),
    "mistral": ("model.family=mistral",),
    "qwen2": ("model.family=qwen2",),
    "qwen3": ("model.family=qwen3",),
}


@dataclass(frozen=True)
class Curves:
    """Loss and gradient norm (before clipping) of every step."""

    loss: list[float]
    norm: list[float]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Curves:
    """What the loop that was written by hand does."""
    attempt = new_attempt(tmp_path_factory.mktemp("reference") / "run", MASKED, world_size=1)
    function = "tests.distributed.plain_loop:train_plainly"
    ((losses, norms),) = run_ranks(function, attempt.path, world_size=1, directory=attempt.path / "ranks")
    return Curves(losses, norms)


@pytest.fixture(scope="module")
def table(report):
    """Rows of what was compared, printed when all are there."""
    rows = [
        "",
        "ten steps in fp32 with clipping and random ignore masks: largest relative difference to a plain torch loop",
        f"{'processes':>9} {'ZeRO':>5} {'micro':>6} {'accumulation':>13} {'loss':>9} {'norm':>9} {'step 1':>9} {'step 10':>9}",
    ]
    yield rows
    report("\n".join(rows))


@pytest.mark.parametrize("micro_batch", MICRO_BATCHES)
@pytest.mark.parametrize(("world_size", "stage"), [(1, 0), *itertools.product((2, 4), STAGES)])
def test_training_does_not_depend_on_the_layout(tmp_path, reference, table, world_size, stage, micro_batch):
    split = f"training.train_micro_batch_size_per_gpu={micro_batch}"
    attempt = trained(tmp_path / "run", *MASKED, f"zero=stage{stage}", split, world_size=world_size)
    losses = curve(attempt)
    loss_difference = largest_relative_difference(losses, reference.loss)
    norm_difference = largest_relative_difference(curve(attempt, "grad_norm"), reference.norm)
    table.append(
        f"{world_size:9} {stage:5} {micro_batch:6} {16 // (world_size * micro_batch):13} "
        f"{loss_difference:9.1e} {norm_difference:9.1e} {losses[0]:9.5f} {losses[-1]:9.5f}"
    )
    assert loss_difference < TOLERANCE
    assert norm_difference < TOLERANCE
    assert len({entry["loss_tokens"] for entry in entries(attempt, "train")}) > 1, "the masks should differ from step to step"


def test_a_stage_of_the_embedding_alone_takes_part_in_the_gradient_norm(tmp_path, reference):
    """ZeRO-1 sums once for each parameter group, of which this stage has one and the other two."""
    cut = ("parallelism.partition_method=explicit", "parallelism.partition_boundaries=[0,1,5]")
    words = ("zero=stage1", "parallelism.pipeline_parallel_size=2", *cut)
    attempt = trained(tmp_path / "run", *MASKED, *words, world_size=2)
    assert largest_relative_difference(curve(attempt), reference.loss) < TOLERANCE
    assert largest_relative_difference(curve(attempt, "grad_norm"), reference.norm) < TOLERANCE


def test_in_bf16_a_rank_that_trains_what_another_one_counts_takes_part_in_the_gradient_norm(tmp_path):
    """Norms are whole on every rank and count on the first, which ZeRO-1 in bf16 sums with code of its own."""
    only_norms = ("training.freeze=[proj,embed,head]", "training.max_steps=3", "precision=bf16")
    own, other = (
        trained(tmp_path / stage, *only_norms, f"zero={stage}", "parallelism.tensor_parallel_size=2", world_size=2)
        for stage in ("stage1", "stage2")
    )
    assert curve(own, "grad_norm") == pytest.approx(curve(other, "grad_norm"), rel=1e-2)
    assert curve(own) == pytest.approx(curve(other), rel=1e-4)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_trains_the_same_whole_and_partitioned(tmp_path, family):
    options = (*FAMILIES[family], "training.max_steps=3", "lr_scheduler.warmup_steps=0")
    whole, partitioned = (
        curve(trained(tmp_path / f"run{stage}", *options, f"zero=stage{stage}", world_size=2)) for stage in (0, 3)
    )
    assert largest_relative_difference(partitioned, whole) < TOLERANCE
    assert len(set(whole)) == 3


@pytest.mark.parametrize("stage", [1, 3])
def test_recomputing_activations_changes_nothing(tmp_path, reference, stage):
    options = (*MASKED, f"zero=stage{stage}", "activation_checkpointing=full")
    assert largest_relative_difference(curve(trained(tmp_path / "run", *options, world_size=2)), reference.loss) < TOLERANCE


def test_held_out_loss_does_not_depend_on_who_measures(tmp_path):
    options = (*MASKED, "training.max_steps=4", "training.evaluate_every=2")
    measured = []
    for world_size, stage in ((1, 0), (2, 0), (2, 3)):
        attempt = trained(tmp_path / f"run{world_size}{stage}", *options, f"zero=stage{stage}", world_size=world_size)
        evaluations = entries(attempt, "evaluate")
        assert [entry["step"] for entry in evaluations] == [2, 4]
        assert attempt.result["held_out_loss"] == attempt.result["metric"] == evaluations[-1]["held_out_loss"]
        measured.append([entry["held_out_loss"] for entry in evaluations])
    for other in measured[1:]:
        assert other == pytest.approx(measured[0], rel=TOLERANCE)


def test_a_batch_in_which_no_label_counts_has_no_loss_and_no_gradient(tmp_path):
    options = ("data.ignore_fraction=0.99999", "training.max_steps=3", "zero=stage1")
    attempt = trained(tmp_path / "run", *options, world_size=2)
    assert curve(attempt, "loss_tokens") == [0, 0, 0]
    assert curve(attempt) == curve(attempt, "grad_norm") == [0.0, 0.0, 0.0]
    assert attempt.result["held_out_loss"] is None
    assert attempt.result["metric"] == attempt.result["final_loss"] == 0.0
