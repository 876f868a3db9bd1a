"""Why a search has not one choice to try: what is pinned cannot be, alone or together, or the batch goes with no layout."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields
from enum import Enum

from orchestrator.config.enums import OffloadDevice
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error
from orchestrator.planning.model_spec import ModelSpec

SIZES = ("tp", "pp", "dp", "micro_batch")


def empty_space(config: RunConfig, spec: ModelSpec, *, devices: Collection[int], batch: int) -> list[Finding]:
    """What keeps every split of one of these numbers of ``devices``, and of ``batch`` sequences, from being a choice."""
    fix = config.planner.fix
    pinned = {field.name: getattr(fix, field.name) for field in fields(fix) if getattr(fix, field.name) is not None}
    if not pinned:
        problem = f"no layout of {spec.name} on {max(devices)} devices shares out {batch} sequences"
        return [
            _finding("training.train_batch_size", problem, f"set training.train_batch_size={_next_multiple(batch, devices)}")
        ]
    found = [*_impossible_sizes(config, spec, devices, batch), *_contradictions(config)]
    if found:
        return found
    named = " ".join(
        f"planner.fix.{name}={value.value if isinstance(value, Enum) else value}" for name, value in pinned.items()
    )
    problem = f"no split of {max(devices)} devices and {batch} sequences has all of {named}"
    return [_finding("planner.fix", problem, "pin less, or sizes whose product divides the devices and the sequences")]


def _impossible_sizes(config: RunConfig, spec: ModelSpec, devices: Collection[int], batch: int) -> Iterator[Finding]:
    """Sizes that no layout has, whatever else is chosen."""
    for name in SIZES:
        size = getattr(config.planner.fix, name)
        if size is None:
            continue
        if size < 1:
            yield _pin(name, size, "is not a number of at least 1", "at least 1")
        elif name == "micro_batch" and batch % size:
            yield _pin(name, size, f"does not divide the {batch} sequences of a step", "a divisor of them")
        elif name != "micro_batch" and all(total % size for total in devices):
            yield _pin(name, size, f"does not divide {max(devices)} devices", "a divisor of them")
        elif name == "tp" and (spec.num_attention_heads % size or spec.intermediate_size % size):
            widths = f"{spec.num_attention_heads} heads and intermediate_size={spec.intermediate_size}"
            yield _pin(name, size, f"does not divide {widths}", "a divisor of both")
        elif name == "pp" and size > spec.num_hidden_layers:
            yield _pin(name, size, f"is more than the {spec.num_hidden_layers} layers", "at most that")
        elif name == "dp" and batch % size:
            yield _pin(name, size, f"does not divide the {batch} sequences of a step", "a divisor of them")


def _contradictions(config: RunConfig) -> Iterator[Finding]:
    """Pins that exclude each other, or that need an option that is not set."""
    fix, none = config.planner.fix, OffloadDevice.none
    stage = fix.zero_stage
    optimizer, param = fix.optimizer_device, fix.param_device
    if stage is not None and not 0 <= stage <= 3:
        yield _pin("zero_stage", stage, "is not a ZeRO stage", "0, 1, 2 or 3")
        return
    if (fix.pp or 1) > 1 and (stage or 0) > 1:
        yield _pin("zero_stage", stage, f"does not go with a pipeline, planner.fix.pp={fix.pp}", "0 or 1")
    if OffloadDevice.nvme in (optimizer, param) and config.offload.nvme_path is None:
        yield _finding("offload.nvme_path", "what is pinned to nvme has no disk to go to", "set offload.nvme_path=/local/nvme")
    highest = 1 if (fix.pp or 1) > 1 else 3
    if param not in (None, none):
        if optimizer is none:
            yield _pin("param_device", param.value, "leaves the optimizer, which is larger, on the device", "none")
        if min(stage if stage is not None else highest, highest) < 3:
            yield _pin("param_device", param.value, "needs ZeRO stage 3, and no pipeline", "none")
    if optimizer not in (None, none) and stage == 0:
        yield _pin("optimizer_device", optimizer.value, "needs ZeRO stage 1 or more", "none")
    if optimizer is OffloadDevice.nvme and min(stage if stage is not None else highest, highest) < 3:
        yield _pin("optimizer_device", optimizer.value, "needs ZeRO stage 3, and no pipeline", "cpu")


def _next_multiple(batch: int, devices: Collection[int]) -> int:
    return -(-batch // min(devices)) * min(devices)


def _pin(name: str, value: object, problem: str, fix: str) -> Finding:
    return _finding(f"planner.fix.{name}", f"{value} {problem}", f"set planner.fix.{name} to {fix}, or to null")


def _finding(field: str, problem: str, fix: str) -> Finding:
    return error("plan-space", field, problem, fix)
