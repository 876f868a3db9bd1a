"""Rules about profiles of single steps."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.findings import Finding, Severity, error, info
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_FIELD = "training.profile"


@rule("profile-steps", "the steps to profile are steps of the run", Severity.error)
def profile_steps(context: RuleContext) -> Iterator[Finding]:
    """They are counted from 1."""
    training = context.config.training
    outside = [step for step in training.profile.steps if not 1 <= step <= training.max_steps]
    if outside:
        inside = [step for step in training.profile.steps if step not in outside]
        fix = f"set {_FIELD}.steps={_listed(inside)}"
        if max(outside) > training.max_steps:
            fix = f"{fix}, or training.max_steps={max(outside)}" if min(outside) >= 1 else fix
        yield error(
            "profile-steps",
            f"{_FIELD}.steps",
            f"{_listed(outside)} lies outside steps 1 to training.max_steps={training.max_steps}",
            fix,
        )


@rule("profile-ranks", "the ranks that are profiled are there", Severity.error, Fact.layout)
def profile_ranks(context: RuleContext) -> Iterator[Finding]:
    """They are counted from 0."""
    ranks, world_size = context.config.training.profile.ranks, context.layout.world_size
    outside = [rank for rank in ranks if not 0 <= rank < world_size]
    if outside:
        inside = [rank for rank in ranks if rank not in outside] or [0]
        yield error(
            "profile-ranks",
            f"{_FIELD}.ranks",
            f"{_listed(outside)} lies outside ranks 0 to {world_size - 1} of the {world_size} processes",
            f"set {_FIELD}.ranks={_listed(inside)}",
        )


@rule("profile-nothing", "a profile has steps, ranks and something to record", Severity.info)
def profile_nothing(context: RuleContext) -> Iterator[Finding]:
    """Without one of them nothing is recorded; a script of the user's own takes steps that we do not see."""
    script, profile = context.config.training.script, context.config.training.profile
    if script is not None and profile.steps:
        message = f"{_listed(profile.steps)} has no effect: training.script takes its own steps"
        yield info("profile-nothing", f"{_FIELD}.steps", message, f"set {_FIELD}.steps=[], and profile in the script")
    elif not profile.steps:
        if profile.memory or not profile.trace or profile.ranks != [0]:
            yield info(
                "profile-nothing",
                f"{_FIELD}.steps",
                f"it is empty: the other options of {_FIELD} have no effect",
                f"set {_FIELD}.steps=[2]",
            )
    elif not profile.ranks:
        yield info("profile-nothing", f"{_FIELD}.ranks", "it is empty: no step is recorded", f"set {_FIELD}.ranks=[0]")
    elif not (profile.trace or profile.memory):
        yield info(
            "profile-nothing",
            f"{_FIELD}.trace",
            f"false, with {_FIELD}.memory=false, records nothing",
            f"set {_FIELD}.trace=true",
        )


def _listed(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
