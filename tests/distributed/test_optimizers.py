"""Every optimizer trains as a loop written by hand does, resumes where it stopped, and is refused where DeepSpeed cannot."""

from __future__ import annotations

import json

import pytest

from orchestrator.run_dir import Attempt
from tests.distributed.attempts import curve, largest_relative_difference, new_attempt
from tests.distributed.ranks import run_ranks

TOLERANCE = 1e-6
LION_TOLERANCE = 1e-4
"""The sign of an update that is nearly zero is an accident of rounding."""
DECAY = 0.5
COMMON = ("training.gradient_clipping=0.1", f"optimizer.weight_decay={DECAY}", "training.max_steps=8")
CPU = "offload.optimizer_device=cpu"
MUON = ("optimizer=muon", "optimizer.adam_lr=5e-3", "training.gradient_clipping=0")
CASES = {
    "Adam, ZeRO-1": ("optimizer=adam", "zero=stage1"),
    "Adam, ZeRO-3": ("optimizer=adam", "zero=stage3"),
    "Adam, ZeRO-2, offloaded": ("optimizer=adam", "zero=stage2", CPU),
    "Lion, ZeRO-1, offloaded": ("optimizer=lion", "zero=stage1", CPU),
    "Lion, ZeRO-3, offloaded": ("optimizer=lion", "zero=stage3", CPU),
    "SGD, no ZeRO": ("optimizer=sgd", "zero=stage0"),
    "SGD, ZeRO-1": ("optimizer=sgd", "zero=stage1"),
    "SGD, ZeRO-3": ("optimizer=sgd", "zero=stage3"),
    "SGD without momentum, ZeRO-2": ("optimizer=sgd", "zero=stage2", "optimizer.momentum=0"),
    "SGD, ZeRO-3, offloaded": ("optimizer=sgd", "zero=stage3", CPU),
    "Adagrad, no ZeRO": ("optimizer=adagrad", "zero=stage0"),
    "Adagrad, ZeRO-1, offloaded": ("optimizer=adagrad", "zero=stage1", CPU),
    "Adagrad, ZeRO-3, offloaded": ("optimizer=adagrad", "zero=stage3", CPU),
    "Muon, no ZeRO": (*MUON, "zero=stage0"),
    "Muon, ZeRO-1": (*MUON, "zero=stage1"),
    "Muon, ZeRO-2, offloaded": (*MUON, "zero=stage2", CPU),
    "Muon, ZeRO-3": (*MUON, "zero=stage3", "zero.reduce_scatter=false"),
    "Muon, ZeRO-3, offloaded": (*MUON, "zero=stage3", "zero.reduce_scatter=false", CPU),
}
RESUMED = (
    "Adam, ZeRO-1",
    "Lion, ZeRO-1, offloaded",
    "SGD without momentum, ZeRO-2",
    "Adagrad, ZeRO-1, offloaded",
    "Muon, ZeRO-1",
    "Muon, ZeRO-3",
)
LEARNING_RATES = {"Adam": 1e-2, "Lion": 1e-3, "SGD": 1.0, "Adagrad": 2e-2, "Muon": 2e-2}


def options_of(name: str) -> tuple[str, ...]:
    return (*COMMON, *CASES[name], f"optimizer.lr={LEARNING_RATES[optimizer_of(name)]}")


def tolerance_of(name: str) -> float:
    return LION_TOLERANCE if name.startswith("Lion") else TOLERANCE


def optimizer_of(name: str) -> str:
    return name.split(",")[0].split()[0]


def trained(run_dir, *options, resume_tag=None) -> Attempt:
    attempt = new_attempt(run_dir, options, world_size=2, resume_tag=resume_tag)
    function = "tests.distributed.optimizer_ranks:run_uncompiled"
    run_ranks(function, attempt.path, world_size=2, directory=attempt.path / "ranks")
    return attempt


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """Losses and gradient norms of the loop written by hand, each made once: it knows nothing of ZeRO and offload."""
    known: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}

    def curves(name: str, *changes: str) -> tuple[list[float], list[float]]:
        options = (*options_of(name), *changes)
        key = tuple(word for word in options if word.startswith(("optimizer", "training")))
        if key not in known:
            folder = tmp_path_factory.mktemp("by_hand")
            attempt = new_attempt(folder / "run", options, world_size=1)
            function = "tests.distributed.plain_loop:train_plainly"
            (known[key],) = run_ranks(function, attempt.path, world_size=1, directory=folder / "ranks")
        return known[key]

    return curves


@pytest.mark.parametrize("name", CASES)
def test_the_curve_of_a_loop_written_by_hand(tmp_path, report, by_hand, name):
    attempt = trained(tmp_path / "run", *options_of(name))
    losses, norms = by_hand(name)
    difference = largest_relative_difference(curve(attempt), losses)
    assert difference < tolerance_of(name)
    report(f"{name}: losses within {difference:.1e} of the loop written by hand")
    if not name.startswith("Muon"):
        # ZeRO's norm is that of Muon's update
        assert largest_relative_difference(curve(attempt, "grad_norm"), norms) < 100 * tolerance_of(name)


@pytest.mark.parametrize(
    ("name", "change"),
    # not by Lion's tolerance
    [(name, change) for name in RESUMED[:-1] for change in ("lr", "weight_decay") if not name.startswith("Lion")],
)
def test_a_setting_that_is_a_tenth_off_would_be_noticed(by_hand, name, change):
    value = {"lr": LEARNING_RATES[optimizer_of(name)], "weight_decay": DECAY}[change]
    other, _ = by_hand(name, f"optimizer.{change}={1.1 * value}")
    assert largest_relative_difference(other, by_hand(name)[0]) > tolerance_of(name)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_unbroken_one(tmp_path, name):
    options = (*options_of(name), "checkpoint.save_every=4")
    whole = trained(tmp_path / "whole", *options)
    trained(tmp_path / "whole", *options, resume_tag="global_step4")
    resumed = json.loads((tmp_path / "whole" / "attempts" / "2" / "result.json").read_text())
    assert resumed["held_out_loss"] == whole.result["held_out_loss"]


def test_another_optimizer_is_not_resumed_with(tmp_path):
    options = (*options_of("SGD, ZeRO-1"), "checkpoint.save_every=4", "training.max_steps=4")
    trained(tmp_path / "run", *options)
    with pytest.raises(AssertionError, match=r"optimizer\.type"):
        trained(tmp_path / "run", *options, "optimizer=adam", resume_tag="global_step4")
