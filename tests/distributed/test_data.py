"""Prepared tokens in training: a mixture, packed, with the loss on answers, follows one curve in every layout."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from orchestrator.run_dir import Attempt
from tests.distributed.attempts import curve, entries, largest_relative_difference, new_attempt, trained
from tests.distributed.ranks import run_ranks
from tests.unit.tokens.written import write_folder

TOLERANCE = 1e-4
VOCABULARY = 128
RESETS = "data.reset_at_documents=true"
WHOLE_BATCH = "training.train_micro_batch_size_per_gpu=16"
SAVING = ("checkpoint.save_every=4", "checkpoint.keep=0")
LAYOUTS = {
    "accumulation 2": (1, ("training.train_micro_batch_size_per_gpu=8",)),
    "dp2, accumulation 4": (2, ("training.train_micro_batch_size_per_gpu=2", *SAVING)),
    "pp2, accumulation 4": (2, ("parallelism.pipeline_parallel_size=2", "training.train_micro_batch_size_per_gpu=4")),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> tuple[str, ...]:
    """Options of two sources, one of them prompts with answers: 46 sequences, so that ten steps are several epochs."""
    folder = tmp_path_factory.mktemp("tokens")
    generator = np.random.default_rng(0)
    for name, count in (("text", 40), ("answers", 60)):
        documents = [generator.integers(0, VOCABULARY, size=size).tolist() for size in generator.integers(2, 24, size=count)]
        answers = [[len(document) // 2 for document in documents]] if name == "answers" else None
        write_folder(folder / name, [documents], vocab_size=VOCABULARY, answers=answers)
    return (
        "data=mixture",
        f"data.sources.text.path={folder / 'text'}",
        "data.sources.text.weight=1",
        f"data.sources.answers.path={folder / 'answers'}",
        "data.sources.answers.weight=3",
        f"data.evaluation.qa={folder / 'answers'}",
        "data.packing=whole_documents",
        "data.sequence_length=16",
        "training.gradient_clipping=0.1",
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    """The run of a layout, once."""

    @cache
    def ran(layout: str, *options: str) -> Attempt:
        world_size, split = LAYOUTS[layout]
        return trained(tmp_path_factory.mktemp("run") / "run", *data, *options, *split, world_size=world_size)

    return ran


def test_packed_answers_train_in_every_layout_as_in_a_loop_in_plain_torch(tmp_path, data, run):
    plain = new_attempt(tmp_path / "run", [*data, WHOLE_BATCH], world_size=1)
    function = "tests.distributed.plain_loop:train_plainly"
    ((expected, _norms),) = run_ranks(function, plain.path, world_size=1, directory=plain.path / "ranks")
    for layout in LAYOUTS:
        assert largest_relative_difference(curve(run(layout)), expected) < TOLERANCE, layout


def test_packed_answers_that_do_not_see_each_other_train_alike_in_every_layout(tmp_path, data, run):
    expected = curve(trained(tmp_path / "run", *data, RESETS, WHOLE_BATCH, world_size=1))
    for layout in LAYOUTS:
        assert largest_relative_difference(curve(run(layout, RESETS)), expected) < TOLERANCE, layout
    assert largest_relative_difference(curve(run(layout)), expected) > TOLERANCE


def test_a_run_that_is_resumed_within_an_epoch_goes_on_as_the_unbroken_one(data, run):
    unbroken = run("dp2, accumulation 4", RESETS)
    world_size, split = LAYOUTS["dp2, accumulation 4"]
    resumed = trained(unbroken.run_dir, *data, RESETS, *split, world_size=world_size, resume_tag="global_step4")
    assert [entry["step"] for entry in entries(resumed, "train")] == [5, 6, 7, 8, 9, 10]
    assert curve(resumed) == curve(unbroken)[4:]
    assert resumed.result["held_out_loss"] == unbroken.result["held_out_loss"]
