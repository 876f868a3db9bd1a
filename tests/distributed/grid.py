"""Legal combinations of everything that says how a training is laid out, for runs of at most eight processes.

What is legal is the planner's to say. It is asked which pairs of values can stand together at all; combinations are drawn
from those pairs, and every one of them is planned before it is used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from itertools import combinations, product
from typing import Any

from orchestrator.config.enums import AttentionImplementation, OffloadDevice, PipelineSchedule, RecomputePolicy
from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Severity
from orchestrator.planning.partition import BALANCED, EXPLICIT, PARAMETERS, UNIFORM
from orchestrator.planning.plan import make_plan
from orchestrator.units import GIB
from tests.distributed.attempts import TINY

MAX_PROCESSES = 8
CANDIDATES = 200
AXES: Mapping[str, tuple[Any, ...]] = {
    "parallelism.tensor_parallel_size": (1, 2, 4),
    "parallelism.pipeline_parallel_size": (1, 2, 4),
    "parallelism.data_parallel_size": (1, 2, 4),
    "parallelism.sequence_parallel": (False, True),
    "parallelism.schedule": tuple(PipelineSchedule),
    "parallelism.partition_method": (UNIFORM, PARAMETERS, BALANCED, EXPLICIT, "type:decoder"),
    "zero.stage": (0, 1, 2, 3),
    "offload.optimizer_device": (OffloadDevice.none, OffloadDevice.cpu),
    "offload.param_device": (OffloadDevice.none, OffloadDevice.cpu),
    "offload.optimizer_ratio": (1.0, 0.5),
    "activation_checkpointing.policy": tuple(RecomputePolicy),
    "activation_checkpointing.interval": (2, 3),
    "activation_checkpointing.partition_activations": (False, True),
    "activation_checkpointing.cpu_checkpointing": (False, True),
    "training.gradient_accumulation_steps": (1, 2, 4, 8),
    "model.tie_word_embeddings": (False, True),
    "model.attention_implementation": (AttentionImplementation.sdpa, AttentionImplementation.eager),
}
"""The options that vary and their values; the first is that of a plain run."""
PLAIN = tuple(values[0] for values in AXES.values())
FIXED = (
    *TINY,
    # Does not divide over two times two ranks: the vocabulary is padded.
    "model.vocab_size=130",
    "data.ignore_fraction=0.4",
    "training.train_batch_size=32",
    "training.train_micro_batch_size_per_gpu=null",
    "training.gradient_clipping=0.1",
    "training.evaluate_sequences=8",
    "optimizer.weight_decay=1",
    # Small enough that a tiny model has several of each.
    "zero.reduce_bucket_size=4000",
    "zero.allgather_bucket_size=4000",
    "zero.sub_group_size=3000",
    "zero.stage3_param_persistence_threshold=40",
    "zero.stage3_prefetch_bucket_size=2000",
)
"""What all cases have in common: a Llama of four or eight blocks, random ignore masks, clipping in every step."""
WITHOUT_EFFECT = ("pipeline-options", "recompute-interval", "recompute-partition")
"""Rules that say of an option that it does nothing; such a case would only look like another."""
Case = tuple[Any, ...]
"""A value of every axis."""
Pair = tuple[tuple[str, Any], tuple[str, Any]]
"""Two axes with a value each, in the order of the axes."""


def options(case: Case) -> dict[str, Any]:
    """Every option that distinguishes a case, with what follows from its axes."""
    values = dict(zip(AXES, case, strict=True))
    pp, folded = values["parallelism.pipeline_parallel_size"], values["parallelism.schedule"] is PipelineSchedule.dual_pipe_v
    stages = pp * (2 if folded else 1)
    blocks = max(4, stages)
    explicit = values["parallelism.partition_method"] == EXPLICIT
    return {
        **values,
        "model.num_hidden_layers": blocks,
        # A block on the first stage and on each of the middle; the last has the rest.
        "parallelism.partition_boundaries": [0, *range(2, stages + 1), blocks + 3] if explicit else None,
        "cluster.devices_per_host": num_processes(case),
    }


def overrides(case: Case) -> tuple[str, ...]:
    """The words of the command line for a case."""
    return (*FIXED, *(f"{field}={_word(value)}" for field, value in options(case).items()))


def num_processes(case: Case) -> int:
    """How many ranks a case needs."""
    values = dict(zip(AXES, case, strict=True))
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    tp, pp, dp = (values[f"parallelism.{name}"] for name in sizes)
    return int(tp * pp * dp)


@cache
def objections(case: Case) -> int:
    """How much speaks against a case: errors of the planner, options without an effect, and too many processes."""
    plan = make_plan(_config(case), hosts=None, machine_memory_bytes=64 * GIB)
    idle = [finding for finding in plan.findings if finding.rule in WITHOUT_EFFECT and finding.severity is Severity.info]
    errors = [finding for finding in plan.findings if finding.severity is Severity.error]
    assert (plan.verdict == "feasible") == (not errors)
    return len(idle) + len(errors) + (num_processes(case) > MAX_PROCESSES)


def pairs(case: Case) -> set[Pair]:
    """The pairs of values of a case."""
    return set(combinations(zip(AXES, case, strict=True), 2))


@cache
def possible_pairs() -> frozenset[Pair]:
    """Every pair of values that some legal case has."""
    known: set[Pair] = set()
    for pair in all_pairs():
        if pair not in known:
            case = _mended(_with(PLAIN, dict(pair)), kept=[axis for axis, _ in pair])
            known |= pairs(case) if case else set()
    return frozenset(known)


def all_pairs() -> Iterator[Pair]:
    """Every pair of values, possible or not."""
    for (axis, values), (other, others) in combinations(AXES.items(), 2):
        yield from (((axis, value), (other, second)) for value, second in product(values, others))


@cache
def pairwise_cover() -> tuple[Case, ...]:
    """Few legal cases that have every possible pair between them, always the same.

    Greedy: of many candidates, each built around a pair that is missing, the next is the one with most missing pairs for its
    cost.
    """
    draw = random.Random(1)
    missing = set(possible_pairs())
    cover: list[Case] = []
    while missing:
        order = sorted(missing, key=repr)
        around = [draw.choice(order) for _ in range(CANDIDATES)]
        drawn = [case for pair in around if (case := _drawn(draw, dict(pair), missing)) is not None]
        if not drawn:
            # Three values together may be illegal where each two are not.
            pair = around[0]
            mended = _mended(_with(PLAIN, dict(pair)), kept=[axis for axis, _ in pair])
            assert mended is not None
            drawn = [mended]
        # The root, because cases that are only cheap would be many.
        gains = [len(pairs(case) & missing) / _cost(case) ** 0.5 for case in drawn]
        best = drawn[gains.index(max(gains))]
        cover.append(best)
        missing -= pairs(best)
    return tuple(cover)


def sample(size: int) -> tuple[Case, ...]:
    """So many different legal cases: the cover, then others at random, always the same; of each two the one that costs less."""
    draw = random.Random(1)
    cases = dict.fromkeys(pairwise_cover())
    while len(cases) < size:
        drawn = [case for _ in range(2) if (case := _drawn(draw, {}, set())) is not None]
        if drawn:
            cases[min(drawn, key=_cost)] = None
    return tuple(cases)


def _cost(case: Case) -> float:
    """About how long a case takes: what a rank takes to start, and its passes."""
    accumulation = options(case)["training.gradient_accumulation_steps"]
    return float(num_processes(case) * (1 + 0.15 * accumulation))


def _drawn(draw: random.Random, start: Mapping[str, Any], wanted: set[Pair]) -> Case | None:
    """A legal case with the values of ``start``, the others at random, rather those with more ``wanted`` pairs.

    None if there is no value for an axis, or the planner objects.
    """
    chosen = dict(start)
    for axis in draw.sample(list(AXES), len(AXES)):
        if axis in chosen:
            continue
        fitting = [value for value in AXES[axis] if all(pair in possible_pairs() for pair in _new_pairs(axis, value, chosen))]
        if not fitting:
            return None
        gains = [sum(pair in wanted for pair in _new_pairs(axis, value, chosen)) for value in fitting]
        chosen[axis] = draw.choice([value for value, gain in zip(fitting, gains, strict=True) if gain == max(gains)])
    case = tuple(chosen[axis] for axis in AXES)
    return case if objections(case) == 0 else None


def _new_pairs(axis: str, value: Any, chosen: Mapping[str, Any]) -> Iterator[Pair]:
    order = list(AXES)
    for other, second in chosen.items():
        first, last = sorted(((axis, value), (other, second)), key=lambda item: order.index(item[0]))
        yield first, last


def _mended(case: Case, *, kept: Sequence[str]) -> Case | None:
    """A legal case near ``case``, which leaves the ``kept`` axes alone; None if none is found.

    Goes from case to case, always to one with fewer objections, by changing one axis or, if that does not help, two.
    """
    free = [axis for axis in AXES if axis not in kept]
    while (before := objections(case)) > 0:
        changes = ({axis: value} for axis in free for value in AXES[axis])
        double = (
            {axis: value, other: second}
            for axis, other in combinations(free, 2)
            for value, second in product(AXES[axis], AXES[other])
        )
        better = next((near for near in _changed(case, changes) if objections(near) < before), None)
        better = better or next((near for near in _changed(case, double) if objections(near) < before), None)
        if better is None:
            return None
        case = better
    return case


def _changed(case: Case, changes: Iterator[Mapping[str, Any]]) -> Iterator[Case]:
    return (_with(case, change) for change in changes)


def _with(case: Case, values: Mapping[str, Any]) -> Case:
    return tuple(values.get(axis, value) for axis, value in zip(AXES, case, strict=True))


@cache
def _base_config() -> RunConfig:
    return load_config([*FIXED, "run_dir=unused"])


def _config(case: Case) -> RunConfig:
    config = deepcopy(_base_config())
    for field, value in options(case).items():
        section, name = field.split(".")
        setattr(getattr(config, section), name, value)
    return config


def _word(value: Any) -> str:
    return "null" if value is None else str(value).replace(" ", "")
