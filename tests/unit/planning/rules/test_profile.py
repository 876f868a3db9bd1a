"""Profiles: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from orchestrator.config.training import ProfileConfig
from tests.unit.planning.rules.broken import ERROR, INFO, Broken, check, each


def profile(**options):
    return {"training__profile": ProfileConfig(**options)}


CASES = [
    Broken(
        "profile-steps",
        ERROR,
        "training.profile.steps",
        profile(steps=[5, 120]),
        ("[120]", "max_steps=100"),
        ("training.profile.steps=[5]",),
    ),
    Broken("profile-steps", ERROR, "training.profile.steps", profile(steps=[101]), ("[101]",), ("training.max_steps=101",)),
    Broken(
        "profile-steps",
        ERROR,
        "training.profile.steps",
        profile(steps=[0, 1]),
        ("[0]", "1 to"),
        ("training.profile.steps=[1]",),
    ),
    Broken(
        "profile-ranks",
        ERROR,
        "training.profile.ranks",
        profile(steps=[1], ranks=[0, 8]),
        ("[8]", "0 to 7"),
        ("training.profile.ranks=[0]",),
    ),
    Broken(
        "profile-nothing", INFO, "training.profile.steps", profile(memory=True), ("no effect",), ("training.profile.steps=[2]",)
    ),
    Broken(
        "profile-nothing",
        INFO,
        "training.profile.steps",
        profile(steps=[1]) | {"training__script": "train.py"},
        ("training.script",),
        ("training.profile.steps=[]",),
    ),
    Broken(
        "profile-nothing",
        INFO,
        "training.profile.ranks",
        profile(steps=[1], ranks=[]),
        ("no step",),
        ("training.profile.ranks=[0]",),
    ),
    Broken(
        "profile-nothing",
        INFO,
        "training.profile.trace",
        profile(steps=[1], trace=False),
        ("records nothing",),
        ("training.profile.trace=true",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)
