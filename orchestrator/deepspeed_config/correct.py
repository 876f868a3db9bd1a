"""Corrects what can be corrected without a doubt, and lists every change."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.deepspeed_config.effective import AUTO, Effective
from orchestrator.deepspeed_config.keys.entry import Block, Key, Reader
from orchestrator.deepspeed_config.keys.optimizers import DEEPSPEED_OPTIMIZERS, SCHEDULERS
from orchestrator.deepspeed_config.keys.reading import Taken, Unclear, read_value
from orchestrator.deepspeed_config.keys.table import ROOT
from orchestrator.deepspeed_config.keys.zero import DEVICES
from orchestrator.deepspeed_config.lint_batch import Batch, autotp_size
from orchestrator.deepspeed_config.lint_rules import LintContext
from orchestrator.deepspeed_config.lint_structure import is_off, resolves, shown

_OLD_OFFLOAD = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
_OLD_GATHER = "stage3_gather_fp16_weights_on_model_save"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a JSON: the key and why, in words."""

    field: str
    message: str

    def to_dict(self) -> dict[str, str]:
        """The change as an entry of ``output=json``."""
        return {"field": self.field, "message": self.message}


def correct(values: Mapping[str, Any], context: LintContext) -> tuple[dict[str, Any], list[Change]]:
    """A copy of a DeepSpeed JSON with current names, nested keys and typed values; and what was changed.

    Removed keys that are off go, deprecated keys get the names they have now, texts that are numbers become numbers. What is
    wrong in any other way stays as it is.
    """
    corrected: dict[str, Any] = deepcopy(dict(values))
    changes: list[Change] = []
    _unflatten(corrected, changes)
    _old_blocks(corrected, changes)
    _block(ROOT, corrected, "", context, changes)
    _parameters(corrected, "optimizer", DEEPSPEED_OPTIMIZERS, context, changes)
    _parameters(corrected, "scheduler", {name.lower(): SCHEDULERS[name] for name in SCHEDULERS}, context, changes)
    return corrected, changes


def _unflatten(values: dict[str, Any], changes: list[Change]) -> None:
    for name in [name for name in values if "." in name and resolves(ROOT, name)]:
        *outer, last = name.split(".")
        target: Any = values
        for part in outer:
            target = target.setdefault(part, {}) if isinstance(target, dict) else None
        if isinstance(target, dict) and last not in target:
            target[last] = values.pop(name)
            changes.append(Change(field=name, message="the dotted key was nested"))


def _old_blocks(values: dict[str, Any], changes: list[Change]) -> None:
    """The forms that were blocks or keys of another shape: ``zero_optimization: true``, ``bfloat16``, ``cpu_offload``."""
    if isinstance(zero := values.get("zero_optimization"), bool):
        values["zero_optimization"] = {"stage": 1, "allgather_bucket_size": 500_000_000} if zero else {"stage": 0}
        if zero and "allgather_size" in values:
            values["zero_optimization"]["allgather_bucket_size"] = values.pop("allgather_size")
        changes.append(Change(field="zero_optimization", message=f"{shown(zero)} became stage {int(zero)}"))
    if "bfloat16" in values and values.get("bf16") is None:
        values["bf16"] = values.pop("bfloat16")
        changes.append(Change(field="bfloat16", message="renamed to bf16"))
    zero = values.get("zero_optimization")
    if isinstance(zero, dict):
        _old_zero_keys(zero, changes)


def _old_zero_keys(zero: dict[str, Any], changes: list[Change]) -> None:
    for old, new in _OLD_OFFLOAD.items():
        if isinstance(on := zero.get(old), bool) and new not in zero:
            del zero[old]
            if on:
                zero[new] = {"device": "cpu"}
            message = f'replaced by {new}: {{"device": "cpu"}}' if on else "dropped: it is deprecated, and off"
            changes.append(Change(field=f"zero_optimization.{old}", message=message))
    if "cpu_offload_use_pin_memory" in zero:
        del zero["cpu_offload_use_pin_memory"]
        message = "dropped: it is deprecated and has no effect; pin_memory of the offload blocks has"
        changes.append(Change(field="zero_optimization.cpu_offload_use_pin_memory", message=message))
    new_names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
    if _OLD_GATHER in zero and not any(name in zero for name in new_names):
        zero[new_names[0]] = zero.pop(_OLD_GATHER)
        changes.append(Change(field=f"zero_optimization.{_OLD_GATHER}", message=f"renamed to {new_names[0]}"))
    for name in ("offload_optimizer", "offload_param"):
        if zero.get(name) in DEVICES and isinstance(zero[name], str):
            changes.append(Change(field=f"zero_optimization.{name}", message=f"{shown(zero[name])} became a block"))
            zero[name] = {"device": zero[name]}


def _block(block: Block, values: dict[str, Any], prefix: str, context: LintContext, changes: list[Change]) -> None:
    for name in list(values):
        entry, path = block.by_name.get(name), f"{prefix}{name}"
        if entry is None:
            continue
        if entry.removed is not None:
            if not context.is_before(entry.removed) and is_off(values[name]):
                del values[name]
                changes.append(Change(field=path, message=f"dropped: DeepSpeed {entry.removed} removed it, and it was off"))
        elif isinstance(entry, Block):
            if isinstance(values[name], dict):
                _block(entry, values[name], f"{path}.", context, changes)
        else:
            _value(entry, values, name, path, block.reader, changes)


def _parameters(
    values: dict[str, Any], name: str, known: Mapping[str, Block], context: LintContext, changes: list[Change]
) -> None:
    """The ``params`` of the optimizer or scheduler, by the type that is named beside them."""
    owner = values.get(name)
    if isinstance(owner, dict) and isinstance(kind := owner.get("type"), str) and isinstance(owner.get("params"), dict):
        block = known.get(kind.lower())
        if block is not None:
            _block(block, owner["params"], f"{name}.params.", context, changes)


def _value(key: Key, values: dict[str, Any], name: str, path: str, reader: Reader, changes: list[Change]) -> None:
    written = values[name]
    if written == AUTO:
        return
    reading = read_value(key, written, reader)
    if reading.taken is Taken.exactly or isinstance(reading.meant, Unclear):
        return
    values[name] = reading.meant
    changes.append(Change(field=path, message=f"{shown(written)} became {shown(reading.meant)}"))


def complete(values: Mapping[str, Any], effective: Effective, batch: Batch) -> tuple[dict[str, Any], list[Change]]:
    """A copy of a corrected JSON with the batch sizes and the gradient clipping DeepSpeed would come to by itself.

    With AutoTP in the JSON ``train_batch_size`` goes instead: DeepSpeed would count every rank in it.
    """
    completed: dict[str, Any] = dict(values)
    changes: list[Change] = []
    sizes = asdict(batch)
    if autotp_size(effective) > 1:
        del sizes["train_batch_size"]
        if completed.pop("train_batch_size", None) is not None:
            changes.append(Change(field="train_batch_size", message="dropped: DeepSpeed would count all ranks with AutoTP"))
    derived = {name: size for name, size in sizes.items() if completed.get(name) is None}
    if not effective.given("gradient_clipping"):
        derived["gradient_clipping"] = effective.value("gradient_clipping")
    for name, value in derived.items():
        completed[name] = value
        changes.append(Change(field=name, message=f"written out: {shown(value)}, as DeepSpeed has it without"))
    return completed, changes
