"""What would make an infeasible plan fit: changes to the configuration, each tried by planning again.

The cheapest in speed come first. The global batch is kept: a smaller micro-batch, or more replicas, change the accumulation.
Only where the user left the global batch open, and it is too small for the replicas, it grows, and the description says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from math import gcd
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.planning.cluster_spec import Host
from orchestrator.planning.layout import ParallelLayout
from orchestrator.planning.moves import (
    DEVICES_PER_HOST,
    HOSTS,
    MICRO_BATCH,
    MOST_HOSTS,
    PIPELINE,
    TENSOR,
    Move,
    Values,
    possible_moves,
)
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.units import format_bytes

MAX_FIXES = 8
MOST_CHANGES = 4
"""Changes that are combined at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Overrides that make the plan fit, as a user types them, and what the fullest device, host and disk then need."""

    overrides: tuple[str, ...]
    description: str
    device_bytes: int
    host_bytes: int
    nvme_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``fixes``."""
        return {
            "overrides": list(self.overrides),
            "description": self.description,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "nvme_bytes": self.nvme_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """Plans variants of one configuration."""

    config: RunConfig
    layout: ParallelLayout
    hosts: Sequence[Host] | None
    machine_memory_bytes: int

    def fix(self, values: Values, meaning: str) -> Fix | None:
        """The fix that ``values`` are, or ``None`` when the run does not fit with its margin, or is not legal, with them."""
        dp = self._replicas(values)
        batch = None if dp is None else self._batch(values, dp)
        if dp is None or batch is None:
            return None
        complete = {name: value for name, value in values.items() if name != MICRO_BATCH} | _batch_values(self.config, batch)
        if self.config.parallelism.data_parallel_size not in (None, dp):
            complete["parallelism.data_parallel_size"] = dp
        changed = deepcopy(self.config)
        for field, value in complete.items():
            _set(changed, field, value)
        plan = make_plan(changed, hosts=self.hosts, machine_memory_bytes=self.machine_memory_bytes)
        if not plan.fits or plan.fits_narrowly:
            return None
        train = self.layout.train_batch_size
        grown = f", the global batch grows from {train} to {batch[_TRAIN]}" if batch[_TRAIN] != train else ""
        return _fix_of(plan, complete, meaning + grown)

    def shares_batch(self, *changes: Values) -> bool:
        """Whether the replicas that ``changes`` make can share the global batch."""
        values = {name: value for change in changes for name, value in change.items()}
        dp = self._replicas(values)
        return dp is not None and self._batch(values, dp) is not None

    def _replicas(self, values: Values) -> int | None:
        """The data-parallel size with ``values``; ``None`` when the axes do not divide the devices."""
        tp = values.get(TENSOR, self.layout.tensor_parallel_size)
        pp = values.get(PIPELINE, self.layout.pipeline_parallel_size)
        devices = self.layout.world_size
        if self.hosts is None:
            cluster = self.config.cluster
            devices = values.get(HOSTS, cluster.hosts) * values.get(DEVICES_PER_HOST, cluster.devices_per_host)
        dp, rest = divmod(devices, tp * pp)
        return None if rest or dp == 0 else int(dp)

    def _batch(self, values: Values, dp: int) -> dict[str, int] | None:
        """The batch sizes over ``dp`` replicas; ``None`` when they cannot share a global batch that was asked for."""
        train, micro = self.layout.train_batch_size, values.get(MICRO_BATCH, self.layout.train_micro_batch_size_per_gpu)
        share, rest = divmod(train, dp)
        if rest and self.config.training.train_batch_size is not None:
            return None
        if rest:
            accumulation = self.layout.gradient_accumulation_steps
            return {_TRAIN: micro * accumulation * dp, MICRO_BATCH: micro, _ACCUMULATION: accumulation}
        micro = gcd(micro, share)
        return {_TRAIN: train, MICRO_BATCH: micro, _ACCUMULATION: share // micro}


_TRAIN = "training.train_batch_size"
_ACCUMULATION = "training.gradient_accumulation_steps"


def find_fixes(config: RunConfig, plan: Plan, *, hosts: Sequence[Host] | None, machine_memory_bytes: int) -> tuple[Fix, ...]:
    """Changes that make ``plan``, the infeasible plan of ``config``, fit; empty for another verdict or when none does.

    Single changes when some fit, else the smallest sets of changes, and larger ones that need fewer hosts. The other
    arguments are those of ``make_plan``.
    """
    if plan.verdict != "infeasible":
        return ()
    assert plan.layout is not None
    trials = _Trials(config=config, layout=plan.layout, hosts=hosts, machine_memory_bytes=machine_memory_bytes)
    moves = possible_moves(config, plan, hosts)
    singles = [fix for move in moves if (fix := _first_that_fits(trials, move)) is not None]
    return tuple((singles or _combined(trials, [move for move in moves if move.combines]))[:MAX_FIXES])


def _first_that_fits(trials: _Trials, move: Move) -> Fix | None:
    return next((fix for step in move.steps if (fix := trials.fix(step, move.meaning)) is not None), None)


def _combined(trials: _Trials, moves: Sequence[Move]) -> list[Fix]:
    """The smallest sets of strongest changes that fit, then larger sets as far as they need fewer hosts than those before.

    Of the sets of one size that need equally many hosts the cheapest in speed is kept.
    """
    fixes: list[Fix] = []
    fewest = MOST_HOSTS + 1
    for size in range(2, MOST_CHANGES + 1):
        found: dict[int, Fix] = {}
        for chosen in combinations(moves, size):
            answer = _with_fewest_hosts(trials, chosen, below=fewest, known=frozenset(found))
            if answer is not None:
                found.setdefault(answer[1], answer[0])
        fixes += found.values()
        fewest = min([fewest, *found])
        if fewest <= trials.config.cluster.hosts:
            break
    return fixes


def _with_fewest_hosts(trials: _Trials, chosen: Sequence[Move], *, below: int, known: frozenset[int]) -> tuple[Fix, int] | None:
    """The changes with the fewest hosts that make them fit, and that number: below ``below`` and none of ``known``."""
    meaning = " and ".join(move.meaning for move in chosen)
    values: dict[str, Any] = {}
    counts = [trials.config.cluster.hosts]
    for move in chosen:
        if HOSTS in move.steps[0]:
            counts = [step[HOSTS] for step in move.steps if step[HOSTS] < below and trials.shares_batch(values, step)]
        else:
            values |= move.steps[-1]
    best: tuple[Fix, int] | None = None
    low, high = 0, len(counts) - 1
    while low <= high:
        middle = high if best is None else (low + high) // 2
        hosts = {} if counts[middle] == trials.config.cluster.hosts else {HOSTS: counts[middle]}
        fix = trials.fix({**values, **hosts}, meaning)
        if fix is None:
            if best is None:
                break
            low = middle + 1
        else:
            best, high = (fix, counts[middle]), middle - 1
    return None if best is None or best[1] in known else best


def _batch_values(config: RunConfig, wanted: Mapping[str, int]) -> dict[str, int]:
    """The batch options that must change so that the configuration gives the ``wanted`` sizes."""
    training = config.training
    given = {
        _TRAIN: training.train_batch_size,
        MICRO_BATCH: training.train_micro_batch_size_per_gpu,
        _ACCUMULATION: training.gradient_accumulation_steps,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) == 1 and wanted[_ACCUMULATION] != 1:
        named.append(_ACCUMULATION)
    return {name: wanted[name] for name in named if given[name] != wanted[name]}


def _fix_of(plan: Plan, values: Values, meaning: str) -> Fix:
    memory = plan.memory
    assert memory is not None and plan.layout is not None
    device = max(entry.device_bytes for entry in memory.device)
    host = max(entry.peak_bytes for entry in memory.host)
    capacity = memory.device[0].capacity_bytes
    needs = f"{format_bytes(device)} of {format_bytes(capacity)} a device, {format_bytes(host)} a host"
    return Fix(
        overrides=tuple(f"{field}={_typed(value)}" for field, value in values.items()),
        description=f"{meaning}; {needs}, {plan.layout.world_size} devices",
        device_bytes=device,
        host_bytes=host,
        nvme_bytes=max(entry.bytes for entry in memory.nvme),
    )


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value) if isinstance(value, Enum) else str(value)


def _set(config: RunConfig, field: str, value: Any) -> None:
    group, name = field.split(".")
    setattr(getattr(config, group), name, value)
