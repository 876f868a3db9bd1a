"""Evaluations: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from tests.unit.planning.rules.broken import ERROR, INFO, WARNING, Broken, check, each

CASES = [
    Broken(
        "keep-best",
        ERROR,
        "checkpoint.keep_best",
        {"checkpoint__keep_best": True, "data__held_out_fraction": 0.0, "data__evaluation": {"code": "/code"}},
        ("data.held_out_fraction=0",),
        ("data.held_out_fraction=0.02",),
    ),
    Broken(
        "keep-best",
        WARNING,
        "checkpoint.keep_best",
        {"checkpoint__keep_best": True},
        ("at the end only",),
        ("training.evaluate_every=10",),
    ),
    Broken(
        "evaluate-nothing",
        INFO,
        "training.evaluate_every",
        {"training__evaluate_every": 5, "data__held_out_fraction": 0.0},
        ("nothing is held out",),
    ),
    Broken(
        "evaluate-nothing",
        INFO,
        "training.evaluate_at_start",
        {"training__evaluate_at_start": True, "data__held_out_fraction": 0.0},
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)
