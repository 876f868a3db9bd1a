"""The best plan of everything that can be run: which layout, ZeRO stage, offload, schedule and recomputation.

Arrays give a lower bound of the time of every choice. Choices are taken in the order of their bounds; each is planned as
``validate`` plans it, under every rule and with its exact time and memory, and the first that is at least as good as all bounds
that are left is the best. Whole families of choices are priced only when the bound of a faster one of their kind comes up.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from orchestrator.config.enums import Objective
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, Severity, error
from orchestrator.planning.capacity import CAPACITY_RULES, DEVICE_MEMORY, usable_bytes
from orchestrator.planning.cluster_spec import ClusterSpec, Host
from orchestrator.planning.cost.speeds import missing_facts
from orchestrator.planning.cost.step_time import StepTime
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.partition import BALANCED
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.rules.check import forbids_estimate
from orchestrator.planning.search.bounds import combination_bytes, combination_seconds
from orchestrator.planning.search.pinned import empty_space
from orchestrator.planning.search.space import (
    Choice,
    Combination,
    fastest_combinations,
    host_counts,
    is_wanted,
    slower_combinations,
)
from orchestrator.units import format_bytes

CHOSEN_GROUPS = frozenset({"parallelism", "zero", "offload", "activation_checkpointing", "training"})
"""Groups of options that the search sets."""
UNCHOSEN_RULES = frozenset({"value-range", "freeze-pattern", "freeze-all"})
"""Rules without which nothing can be estimated, of options that the search leaves as they are but for ``CHOSEN_OPTIONS``."""
CHOSEN_OPTIONS = frozenset({"zero.stage"})
MOST_KINDS = 5
MOST_ON_FRONT = 5
WORTH_SHOWING = 1.5
"""Times as slow as the best that something else may be."""
MEANT_SAVING = 0.9
"""A point of the front needs at most this share of the memory of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A choice that passes every rule and fits with its margin."""

    choice: Choice
    config: RunConfig
    plan: Plan
    time: StepTime
    score: float
    """What the objective makes least: seconds, or device seconds."""
    leaves_hosts_idle: bool

    @property
    def num_devices(self) -> int:
        """Devices it uses."""
        assert self.plan.layout is not None
        return self.plan.layout.world_size

    @property
    def device_bytes(self) -> int:
        """What the fullest rank needs of its device."""
        assert self.plan.memory is not None
        return max(entry.device_bytes for entry in self.plan.memory.device)

    @property
    def headroom_bytes(self) -> int:
        """What the fullest rank leaves free."""
        assert self.plan.memory is not None
        return min(entry.capacity_bytes - entry.device_bytes for entry in self.plan.memory.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Choices that would have been better, and the rule that forbids them."""

    rule: str
    choices: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """What a search found. Without a best plan ``findings`` and ``refused`` say why; with one, ``findings`` are errors of
    options that a search does not choose."""

    best: Candidate | None
    others: tuple[Candidate, ...]
    """The best of each other kind, best first."""
    front: tuple[Candidate, ...]
    """Ever less memory for ever more time, the best plan first."""
    refused: tuple[Refusal, ...]
    num_choices: int
    num_planned: int
    findings: tuple[Finding, ...]


def search(
    config: RunConfig, *, hosts: Sequence[Host] | None, machine_memory_bytes: int, best_only: bool = False
) -> SearchResult:
    """The best plan for ``config``'s model, cluster and global batch, whatever layout, ZeRO or offload it names.

    The arguments are those of ``make_plan``; with ``best_only`` neither others nor a front are looked for. Never raises for
    what a user can get wrong.
    """
    base = make_plan(config, hosts=hosts, machine_memory_bytes=machine_memory_bytes)
    problems = list(_problems(config, base))
    if problems:
        return _nothing(problems)
    assert base.model is not None and base.cluster is not None
    walk = _Walk(
        config=config,
        spec=base.model,
        cluster=base.cluster,
        hosts=hosts,
        machine_memory_bytes=machine_memory_bytes,
        train_batch_size=global_batch(config, base),
        unrelated=frozenset(unrelated_errors(base)),
        best_only=best_only,
    )
    sets = _host_sets(config, base.cluster)
    for devices in sets:
        walk.run(devices)
        if walk.found:
            break
    if walk.num_choices:
        return walk.result()
    totals = [total for devices in sets for total in devices.values()]
    return _nothing(empty_space(config, base.model, devices=totals, batch=walk.train_batch_size))


def global_batch(config: RunConfig, plan: Plan) -> int:
    """Sequences of a step: as asked for, else what the configuration's own layout makes."""
    if config.training.train_batch_size is not None:
        return config.training.train_batch_size
    assert plan.layout is not None
    return plan.layout.train_batch_size


def errors_of(plan: Plan) -> Iterator[Finding]:
    """The findings that refuse a plan."""
    return (finding for finding in plan.findings if finding.severity is Severity.error)


def unrelated_errors(plan: Plan) -> Iterator[Finding]:
    """Errors of options that a search does not choose, a missing data path say: they speak against no choice."""
    return (finding for finding in errors_of(plan) if finding.field.split(".")[0] not in CHOSEN_GROUPS | {"cluster", "model"})


def _problems(config: RunConfig, plan: Plan) -> Iterator[Finding]:
    """What no choice can mend."""
    if plan.model is None or plan.cluster is None:
        yield from errors_of(plan)
        return
    if config.training.train_batch_size is None and plan.layout is None:
        yield error(
            "plan-batch",
            "training.train_batch_size",
            "the global batch is not given, and the layout that would make it is not legal",
            "set training.train_batch_size",
        )
    elif config.training.train_batch_size is not None and config.training.train_batch_size < 1:
        yield error(
            "plan-batch",
            "training.train_batch_size",
            f"{config.training.train_batch_size} is not a number of at least 1",
            "set training.train_batch_size=1 or more",
        )
    yield from (
        finding for finding in errors_of(plan) if finding.rule in UNCHOSEN_RULES and finding.field not in CHOSEN_OPTIONS
    )
    lacking = missing_facts(plan.cluster, plan.settings.dtype)
    wrong_format = [finding for finding in errors_of(plan) if finding.rule == "device-precision"]
    if lacking is not None and wrong_format:
        yield from wrong_format
    elif lacking is not None:
        yield error("plan-speeds", "cluster", lacking, "give them, or take a cluster preset that has them")


def _host_sets(config: RunConfig, cluster: ClusterSpec) -> list[dict[int, int]]:
    """Numbers of hosts with their devices that are searched together; the next set only if those before have no plan."""
    available = len(cluster.hosts)
    if len({host.slots for host in cluster.hosts}) > 1:
        return [{available: cluster.num_devices}]
    devices = {number: number * cluster.devices_per_host for number in host_counts(available)}
    if config.planner.objective is Objective.fewest_hosts:
        return [{number: devices[number]} for number in reversed(devices)]
    return [devices]


def _nothing(findings: Sequence[Finding]) -> SearchResult:
    return SearchResult(best=None, others=(), front=(), refused=(), num_choices=0, num_planned=0, findings=tuple(findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """A combination with the bounds of its choices. ``order`` are those that fit the devices, best bound first."""

    combination: Combination
    scores: np.ndarray
    order: np.ndarray
    needed_bytes: np.ndarray | None
    """Of each choice; ``None`` where only a plan tells."""


@dataclass(slots=True, kw_only=True)
class _Walk:
    """Choices in the order of their bounds."""

    config: RunConfig
    spec: ModelSpec
    cluster: ClusterSpec
    hosts: Sequence[Host] | None
    machine_memory_bytes: int
    train_batch_size: int
    unrelated: frozenset[Finding]
    best_only: bool
    found: list[Candidate] = field(default_factory=list)
    kinds: set[Any] = field(default_factory=set)
    front: list[Candidate] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    known_refusals: dict[Any, str] = field(default_factory=dict)
    waiting: list[tuple[float, bool, tuple[Any, ...], int, Callable[[], None]]] = field(default_factory=list)
    """Bound; whether it is a finished candidate; of those, which first; a number that none shares; what to do."""
    tickets: Iterator[int] = field(default_factory=count)
    num_choices: int = 0
    num_planned: int = 0
    least_bytes: int = sys.maxsize
    """What the smallest of all choices needs of a device, of those that arrays tell."""

    def run(self, devices: Mapping[int, int]) -> None:
        """Search these numbers of hosts, which have so many devices together."""
        self.waiting.clear()
        combinations = fastest_combinations(self.config, self.spec, devices=devices, train_batch_size=self.train_batch_size)
        for combination in combinations:
            self._wait(0.0, partial(self._price, combination))
        while self.waiting and not self._is_done(self.waiting[0][0]):
            *_, then = heapq.heappop(self.waiting)
            then()

    def result(self) -> SearchResult:
        """What was found so far, the stages of the best one cut anew where that is faster."""
        found = [self._balanced(self.found[0]), *self.found[1:]] if self.found else []
        front = [found[0], *self.front[1:]] if found else []
        refusals = self.refused.most_common()
        if not found and sys.maxsize > self.least_bytes > self.cluster.device_memory_bytes:
            sizes = (
                f"{format_bytes(self.least_bytes)} at least, and a device has {format_bytes(self.cluster.device_memory_bytes)}"
            )
            self.examples[DEVICE_MEMORY] = f"they need {sizes}"
        return SearchResult(
            best=found[0] if found else None,
            others=tuple(found[1:]),
            front=tuple(front),
            refused=tuple(Refusal(rule=rule, choices=number, example=self.examples[rule]) for rule, number in refusals),
            num_choices=self.num_choices,
            num_planned=self.num_planned,
            findings=tuple(finding for finding in self.unrelated if not found or finding in found[0].plan.findings),
        )

    def _wait(self, bound: float, then: Callable[[], None], *, finished: Choice | None = None) -> None:
        """Do ``then`` when nothing with a smaller bound is left; what is finished comes after the rest with its bound."""
        order = () if finished is None else finished.order
        heapq.heappush(self.waiting, (bound, finished is not None, order, next(self.tickets), then))

    def _is_done(self, bound: float) -> bool:
        if not self.found:
            return False
        enough = len(self.found) >= MOST_KINDS and len(self.front) >= MOST_ON_FRONT
        return self.best_only or enough or bound > WORTH_SHOWING * self.found[0].score

    def _price(self, combination: Combination) -> None:
        """Bounds of a combination, which are also bounds of those that are slower."""
        seconds = combination_seconds(self.config, self.spec, self.cluster, combination)
        scores = self._scores(seconds, combination)
        bound = float(scores.min())
        for slower in slower_combinations(self.config, combination):
            self._wait(bound, partial(self._price, slower))
        if is_wanted(self.config, combination):
            self.num_choices += combination.num_choices
            self._wait(bound, partial(self._fit, combination, scores))

    def _scores(self, seconds: np.ndarray, combination: Combination) -> np.ndarray:
        if self.config.planner.objective is not Objective.cost:
            return seconds
        return np.asarray(seconds * combination.num_devices)

    def _fit(self, combination: Combination, scores: np.ndarray) -> None:
        """Leave out what does not fit the devices."""
        needed = combination_bytes(self.config, self.spec, self.cluster, combination)
        order = np.argsort(scores, kind="stable")
        if needed is not None:
            fits = needed <= usable_bytes(self.cluster.device_memory_bytes, self.config.planner.memory_margin)
            self.least_bytes = min(self.least_bytes, int(needed.min()))
            self._refuse(DEVICE_MEMORY, int((~fits).sum()), "they need more than a device has")
            order = order[fits[order]]
        self._plan_next(_Family(combination=combination, scores=scores, order=order, needed_bytes=needed), 0)

    def _plan_next(self, family: _Family, position: int) -> None:
        """Wait for the next choice of a family that could still be shown."""
        for place in range(position, len(family.order)):
            if self._is_useful(family, place):
                self._wait(float(family.scores[family.order[place]]), partial(self._plan, family, place))
                return

    def _plan(self, family: _Family, place: int) -> None:
        """Plan a choice under every rule, and wait until its real time is the least of what is left."""
        if self._is_useful(family, place):
            candidate = self._candidate(family.combination.choice(int(family.order[place])))
            if candidate is not None:
                self._wait(candidate.score, partial(self._accept, candidate), finished=candidate.choice)
        self._plan_next(family, place + 1)

    def _is_useful(self, family: _Family, place: int) -> bool:
        """Whether it could be the best of a kind that is not there yet, or the next point of the front."""
        index = int(family.order[place])
        if len(self.found) < MOST_KINDS and family.combination.choice(index).kind not in self.kinds:
            return True
        if not self.front or len(self.front) >= MOST_ON_FRONT:
            return False
        return family.needed_bytes is None or bool(family.needed_bytes[index] <= MEANT_SAVING * self.front[-1].device_bytes)

    def _accept(self, candidate: Candidate) -> None:
        if len(self.found) < MOST_KINDS and candidate.choice.kind not in self.kinds:
            self.found.append(candidate)
            self.kinds.add(candidate.choice.kind)
        saves = not self.front or candidate.device_bytes <= MEANT_SAVING * self.front[-1].device_bytes
        if saves and len(self.front) < MOST_ON_FRONT:
            self.front.append(candidate)

    def _candidate(self, choice: Choice, **further: Any) -> Candidate | None:
        """The choice as a plan, or ``None`` with a note of the rule that speaks against it."""
        signature = (replace(choice, micro_batch=0, micro_batches=0, hosts=min(2, choice.hosts)), *further)
        if signature in self.known_refusals:
            self._refuse(self.known_refusals[signature], 1, "")
            return None
        config = configured(self.config, {**choice.values, **further})
        hosts = self.hosts[: choice.hosts] if self.hosts is not None else None
        if hosts is None:
            config = replace(config, cluster=replace(config.cluster, hosts=choice.hosts))
        plan = make_plan(config, hosts=hosts, machine_memory_bytes=self.machine_memory_bytes)
        self.num_planned += 1
        errors = [error for error in errors_of(plan) if error not in self.unrelated or forbids_estimate([error])]
        if errors and errors[0].rule not in CAPACITY_RULES:
            self.known_refusals[signature] = errors[0].rule
        narrow = [finding for finding in plan.findings if finding.rule in CAPACITY_RULES]
        if errors or narrow:
            worst = (errors or narrow)[0]
            self._refuse(worst.rule, 1, worst.message)
            return None
        time = plan.time
        assert plan.layout is not None and time is not None
        weight = plan.layout.world_size if config.planner.objective is Objective.cost else 1
        return Candidate(
            choice=choice,
            config=config,
            plan=plan,
            time=time,
            score=time.step_seconds * weight,
            leaves_hosts_idle=choice.hosts < len(self.cluster.hosts),
        )

    def _balanced(self, candidate: Candidate) -> Candidate:
        """The candidate with stages balanced by time and memory, where they are faster."""
        if candidate.choice.pipeline_parallel_size == 1:
            return candidate
        other = self._candidate(candidate.choice, **{PARTITION_METHOD: BALANCED})
        return other if other is not None and other.score < candidate.score else candidate

    def _refuse(self, rule: str, number: int, example: str) -> None:
        if number:
            self.refused[rule] += number
            self.examples.setdefault(rule, example)


PARTITION_METHOD = "parallelism.partition_method"


def chosen_values(config: RunConfig, candidate: Candidate) -> dict[str, Any]:
    """The options that make ``config`` the candidate's run."""
    values = dict(candidate.choice.values)
    values[PARTITION_METHOD] = candidate.config.parallelism.partition_method
    if config.parallelism.auto:
        values["parallelism.auto"] = False
    named = config.cluster.hostfile is not None or config.cluster.include is not None or config.cluster.exclude is not None
    if named and candidate.leaves_hosts_idle:
        assert candidate.plan.cluster is not None
        values["cluster.include"] = "@".join(map(_filter_entry, candidate.plan.cluster.hosts))
        values["cluster.exclude"] = None
    elif candidate.leaves_hosts_idle:
        values["cluster.hosts"] = candidate.choice.hosts
    return values


def _filter_entry(host: Host) -> str:
    """A host as ``cluster.include`` names it."""
    return host.name if host.devices is None else f"{host.name}:{','.join(map(str, host.devices))}"


def configured(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """``config`` with dotted options set."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, option = name.split(".")
        groups.setdefault(group, {})[option] = value
    return replace(config, **{group: replace(getattr(config, group), **options) for group, options in groups.items()})
