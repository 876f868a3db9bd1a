"""Rules about how the layers are cut into pipeline stages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import pairwise

from orchestrator.findings import Finding, Severity, error
from orchestrator.planning.partition import (
    EXPLICIT,
    METHODS,
    TYPE_PREFIX,
    layer_names,
    matched_layers,
    stages_per_rank,
)
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_METHOD, _BOUNDARIES = "parallelism.partition_method", "parallelism.partition_boundaries"


@rule("partition-method", "the partition method is known", Severity.error, concerns_memory=True)
def partition_method(context: RuleContext) -> Iterator[Finding]:
    """A word of the list, or a regular expression of layer classes."""
    method = context.config.parallelism.partition_method
    if method in METHODS:
        return
    if not method.startswith(TYPE_PREFIX):
        close = get_close_matches(method, METHODS, n=1) or ["uniform"]
        yield error(
            "partition-method",
            _METHOD,
            f"{method!r} is none of {', '.join(METHODS)} or {TYPE_PREFIX}REGEX",
            f"set {_METHOD}={close[0]}",
        )
        return
    if method == TYPE_PREFIX:
        yield error("partition-method", _METHOD, f"{method!r} has no expression", f"set {_METHOD}=type:decoder, for one")
        return
    try:
        re.compile(method.removeprefix(TYPE_PREFIX))
    except re.error as problem:
        yield error(
            "partition-method",
            _METHOD,
            f"{method!r} holds no regular expression: {problem}",
            f"set {_METHOD}=type:decoder, for one",
        )


@rule(
    "partition-type", "type:REGEX finds a layer for every stage", Severity.error, Fact.model, Fact.layout, concerns_memory=True
)
def partition_type(context: RuleContext) -> Iterator[Finding]:
    """Stages begin with a layer that it finds."""
    parallelism, pp = context.config.parallelism, context.layout.pipeline_parallel_size
    if not parallelism.partition_method.startswith(TYPE_PREFIX) or pp == 1:
        return
    try:
        found = matched_layers(context.model, parallelism.partition_method)
    except re.error:
        return
    stages = pp * stages_per_rank(parallelism.schedule, pp)
    if len(found) < stages:
        classes = ", ".join(dict.fromkeys(layer_names(context.model)))
        yield error(
            "partition-type",
            _METHOD,
            f"{parallelism.partition_method!r} finds {len(found)} of the layers ({classes}), and there are {stages} stages",
            f"set {_METHOD}=type:{layer_names(context.model)[-3]}",
        )


@rule("partition-explicit", "boundaries go with the explicit method", Severity.error, concerns_memory=True)
def partition_explicit(context: RuleContext) -> Iterator[Finding]:
    """One without the other would be ignored, or means nothing."""
    parallelism = context.config.parallelism
    if parallelism.partition_method == EXPLICIT and parallelism.partition_boundaries is None:
        if parallelism.pipeline_parallel_size > 1:
            yield error(
                "partition-explicit",
                _BOUNDARIES,
                f"{_METHOD}=explicit, and there are no boundaries",
                f"set {_BOUNDARIES} to the first layer of each stage and the number of layers, or {_METHOD}=uniform",
            )
    elif parallelism.partition_method != EXPLICIT and parallelism.partition_boundaries is not None:
        yield error(
            "partition-explicit",
            _BOUNDARIES,
            f"{parallelism.partition_boundaries} is not looked at with {_METHOD}={parallelism.partition_method}",
            f"set {_METHOD}=explicit, or {_BOUNDARIES}=null",
        )


@rule(
    "partition-boundaries",
    "explicit boundaries cut the model into the stages",
    Severity.error,
    Fact.model,
    Fact.layout,
    concerns_memory=True,
)
def partition_boundaries(context: RuleContext) -> Iterator[Finding]:
    """They start at 0, rise, end at the number of layers, and there is one more than stages."""
    parallelism, pp = context.config.parallelism, context.layout.pipeline_parallel_size
    boundaries = parallelism.partition_boundaries
    if parallelism.partition_method != EXPLICIT or boundaries is None or pp == 1:
        return
    layers = len(layer_names(context.model))
    held = stages_per_rank(parallelism.schedule, pp)
    stages = pp * held
    wrong = []
    if len(boundaries) != stages + 1:
        each = " (two for each coordinate)" if held == 2 else ""
        wrong.append(f"{len(boundaries)} boundaries, where {stages} stages{each} have {stages + 1}")
    if boundaries and boundaries[0] != 0:
        wrong.append(f"the first is {boundaries[0]} and not 0")
    if boundaries and boundaries[-1] != layers:
        wrong.append(f"the last is {boundaries[-1]} and not {layers}, the number of layers")
    if any(first >= second for first, second in pairwise(boundaries)):
        wrong.append("they do not rise, so a stage is empty")
    if wrong:
        even = [layers * stage // stages for stage in range(stages + 1)]
        fix = f"set {_BOUNDARIES}={even}".replace(" [", "[") if layers >= stages else "use fewer stages"
        yield error("partition-boundaries", _BOUNDARIES, f"{boundaries}: {'; '.join(wrong)}", fix.replace(", ", ","))
