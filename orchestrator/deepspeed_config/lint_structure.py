"""Keys and values: what is unknown, misplaced, removed, renamed, of the wrong kind, out of range, or left at ``"auto"``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from packaging.version import Version

from orchestrator.deepspeed_config.effective import AUTO
from orchestrator.deepspeed_config.keys.entry import READ_RELEASES, Block, Key, Reader
from orchestrator.deepspeed_config.keys.reading import Fault, Taken, Unclear, read_value
from orchestrator.deepspeed_config.keys.table import REPLACEMENTS, ROOT
from orchestrator.deepspeed_config.keys.zero import DEVICES
from orchestrator.deepspeed_config.lint_rules import LintContext, lint_rule
from orchestrator.findings import Finding, Severity

UNKNOWN_KEY = lint_rule("json-unknown-key", "every key is one that DeepSpeed reads", Severity.error)
DOTTED_KEY = lint_rule("json-dotted-key", "keys are nested, not written with dots", Severity.error)
KEY_REMOVED = lint_rule("json-key-removed", "no key was removed from this DeepSpeed", Severity.error)
KEY_TOO_NEW = lint_rule("json-key-too-new", "this DeepSpeed has the key already", Severity.error)
KEY_DEPRECATED = lint_rule("json-key-deprecated", "keys have their current names", Severity.warning)
KEY_CONFLICT = lint_rule("json-key-conflict", "no field is given under two names", Severity.error)
KEY_UNUSED = lint_rule("json-key-unused", "DeepSpeed uses the key", Severity.warning)
KIND = lint_rule("json-type", "every value is of the kind its key takes", Severity.error)
COERCED = lint_rule("json-type-coerced", "no value relies on being converted", Severity.warning)
RANGE = lint_rule("json-range", "every number lies in its range", Severity.error)
CHOICE = lint_rule("json-choice", "every choice is one there is", Severity.error)
AUTO_LEFT = lint_rule("json-auto", '"auto" is resolved before DeepSpeed reads it', Severity.error)

_TRAINER_NEEDS = {
    "scheduler.params.total_num_steps": "max_steps in hf_arguments",
    "scheduler.params.warmup_num_steps": "max_steps in hf_arguments",
    "zero_optimization.reduce_bucket_size": "the model (model=PRESET)",
    "zero_optimization.stage3_prefetch_bucket_size": "the model (model=PRESET)",
    "zero_optimization.stage3_param_persistence_threshold": "the model (model=PRESET)",
}
"""What the Trainer's own value is made of, where it needs more than is given."""


def structure_findings(values: Mapping[str, Any], context: LintContext) -> Iterator[Finding]:
    """The findings about every key and value of a DeepSpeed JSON, in the order of the file."""
    yield from _block(ROOT, values, "", context)


def resolves(block: Block, dotted: str) -> bool:
    """Whether a dotted name leads to a key under ``block``, or into a block with keys of the user's own."""
    entry: Block | Key | None = block
    for name in dotted.split("."):
        if isinstance(entry, Block) and entry.free:
            return True
        entry = entry.by_name.get(name) if isinstance(entry, Block) else None
    return entry is not None


def structure_of(block: Block, values: Mapping[str, Any], prefix: str, context: LintContext) -> Iterator[Finding]:
    """The findings about the keys and values of one block, whose path with its dot is ``prefix``."""
    yield from _block(block, values, prefix, context)


def is_off(value: Any) -> bool:
    """Whether the value of a removed key switches its feature off."""
    if isinstance(value, Mapping):
        return not _switched_on(value)
    return value is None or value is False or (isinstance(value, (int, float)) and value <= 0)


def _switched_on(value: Mapping[str, Any]) -> bool:
    if "mode" in value:
        return True
    return any(_switched_on(item) if isinstance(item, Mapping) else name == "enabled" and item for name, item in value.items())


def _block(block: Block, values: Mapping[str, Any], prefix: str, context: LintContext) -> Iterator[Finding]:
    yield from _conflicts(block, values, prefix)
    for name, value in values.items():
        path = f"{prefix}{name}"
        entry = block.by_name.get(name)
        if entry is None:
            if not block.free:
                yield _unknown(block, name, path)
        elif entry.removed is not None and not context.is_before(entry.removed):
            yield _removed(path, value, entry.removed, context)
        elif entry.added is not None and context.is_before(entry.added):
            yield _too_new(path, entry.added, context)
        elif entry.removed is not None:
            continue
        elif isinstance(entry, Block):
            yield from _nested(entry, value, path, context, block.reader)
        else:
            yield from _remarks(entry, path, value, values)
            yield from _value(entry, value, path, block.reader, context)


def _conflicts(block: Block, values: Mapping[str, Any], prefix: str) -> Iterator[Finding]:
    for entry in block.entries:
        both = [name for name in entry.names if name in values]
        if len(both) > 1:
            message = f"{both[0]} and {both[1]} are one field, and DeepSpeed refuses both at once"
            yield KEY_CONFLICT(f"{prefix}{both[1]}", message, f"keep {both[0]} only")
        if isinstance(entry, Key) and entry.deprecated_for and entry.name in values:
            replacement = block.by_name.get(entry.deprecated_for)
            if replacement is not None and any(name in values for name in replacement.names):
                message = f"it is given with {entry.deprecated_for}, which replaces it; DeepSpeed refuses both at once"
                yield KEY_CONFLICT(f"{prefix}{entry.name}", message, f"delete {entry.name}")
    if block is ROOT and "bfloat16" in values and values.get("bf16") is not None:
        yield KEY_CONFLICT("bfloat16", "it is the old name of bf16, and ignored beside it", "delete bfloat16")


def _remarks(key: Key, path: str, value: Any, siblings: Mapping[str, Any]) -> Iterator[Finding]:
    if key.deprecated_for is not None:
        without = f"{path} has no effect any more; " if "or" in key.deprecated_for.split() else ""
        message = f"{without}it is deprecated and replaced by {key.deprecated_for}"
        yield KEY_DEPRECATED(path, message, f"use {key.deprecated_for}; compile does")
    elif key.unused is not None:
        yield KEY_UNUSED(path, f"{shown(value)} has no effect: {key.unused}", "delete it")
    elif path == "allgather_size" and not isinstance(siblings.get("zero_optimization"), bool):
        message = "it is only read beside the old form zero_optimization: true"
        yield KEY_UNUSED(path, message, "use zero_optimization.allgather_bucket_size")


def _nested(block: Block, value: Any, path: str, context: LintContext, outer: Reader) -> Iterator[Finding]:
    if path == "bfloat16":
        yield KEY_DEPRECATED(path, "it is the old name of bf16", "rename it to bf16; compile does")
    if isinstance(value, Mapping):
        yield from _block(block, value, f"{path}.", context)
    elif value is None and block.optional:
        return
    elif path == "zero_optimization" and isinstance(value, bool):
        message = f"{shown(value)} is the old form of stage {int(value)}"
        yield KEY_DEPRECATED(path, message, f'write {{"stage": {int(value)}}}; compile does')
    elif value == AUTO:
        does = "drop it and use its defaults" if outer is Reader.model else "fail on it"
        yield AUTO_LEFT(path, f'"auto" cannot stand for a block: DeepSpeed would {does}', "write the block, or delete it")
    else:
        fix = "write a mapping, or delete it"
        if path.endswith(("offload_optimizer", "offload_param")) and value in DEVICES:
            fix = f'write {{"device": {shown(value)}}}; compile does'
        yield KIND(path, f"{shown(value)} is no mapping of keys, and DeepSpeed refuses it", fix)


def _value(key: Key, value: Any, path: str, reader: Reader, context: LintContext) -> Iterator[Finding]:
    if value == AUTO and not key.takes_auto:
        yield _auto_left(key, path, reader, context)
        return
    if value == AUTO:
        return
    reading = read_value(key, value, reader)
    if reading.taken is Taken.exactly:
        return
    clear = not isinstance(reading.meant, Unclear)
    fix = f"write {shown(reading.meant)}" if clear else f"set it to {reading.wanted}"
    if reading.taken is Taken.converted:
        yield COERCED(path, f"DeepSpeed takes {shown(value)} as {shown(reading.meant)}", fix)
        return
    does = "DeepSpeed refuses it"
    if reading.taken is Taken.unchecked:
        as_number = f"DeepSpeed takes it as {int(value)}" if reader is Reader.model and isinstance(value, bool) else ""
        does = as_number or "DeepSpeed keeps it unchecked, and fails or errs where it is used"
    rule = {Fault.kind: KIND, Fault.size: RANGE, Fault.choice: CHOICE}[reading.fault or Fault.kind]
    if reading.fault is Fault.choice and isinstance(value, str):
        near = get_close_matches(value.lower(), [str(choice) for choice in key.choices], n=1)
        fix = f"did you mean {near[0]}?" if near else fix
    yield rule(path, f"{shown(value)} is not {reading.wanted}; {does}", f"{fix}; compile does" if clear else fix)


def _auto_left(key: Key, path: str, reader: Reader, context: LintContext) -> Finding:
    default = shown(key.default_in(context.version))
    does = f"drop it and use {default}" if reader is Reader.model else "keep the text and fail on it"
    if context.hf_arguments is not None:
        fix = "write the value"
        if path in _TRAINER_NEEDS:
            fix = f"write the value, or name {_TRAINER_NEEDS[path]}, from which the Trainer computes it"
        return AUTO_LEFT(path, f'the Trainer does not fill this "auto" here: DeepSpeed would {does}', fix)
    fix = "write the value, or name the Trainer's arguments with hf_arguments=FILE where it fills this one"
    return AUTO_LEFT(path, f'only the Hugging Face Trainer fills "auto"; DeepSpeed itself would {does}', fix)


def _removed(path: str, value: Any, release: str, context: LintContext) -> Finding:
    dies = f"it was removed in DeepSpeed {release}, and {context.version} dies at the start when it is there"
    if is_off(value):
        fix = "delete it; compile does"
        return KEY_REMOVED(path, f"{dies}, even though it is off", fix, Severity.warning)
    instead = REPLACEMENTS.get(path)
    return KEY_REMOVED(path, dies, f"delete it; {instead}" if instead else "delete it, or use an older DeepSpeed")


def _too_new(path: str, release: str, context: LintContext) -> Finding:
    """An error where a release read lacks the key, a warning between that one and the first that has it."""
    before = READ_RELEASES[READ_RELEASES.index(release) - 1]
    fix = f"delete it, or use DeepSpeed {release} or newer"
    if context.version <= Version(before):
        return KEY_TOO_NEW(path, f"DeepSpeed {context.version} does not know it", fix)
    message = f"DeepSpeed {release} knows it and {before} does not; {context.version} lies between"
    return KEY_TOO_NEW(path, message, fix, Severity.warning)


def _unknown(block: Block, name: str, path: str) -> Finding:
    if "." in name and resolves(block, name):
        nested = "".join(f'{{"{part}": ' for part in name.split(".")) + "..." + "}" * len(name.split("."))
        return DOTTED_KEY(path, "DeepSpeed does not split keys at dots and ignores this one", f"write {nested}; compile does")
    does = "DeepSpeed refuses it" if block.reader is Reader.model else "DeepSpeed ignores it in silence"
    return UNKNOWN_KEY(path, f"there is no such key, and {does}", _did_you_mean(block, name, path))


def _did_you_mean(block: Block, name: str, path: str) -> str:
    prefix = path[: len(path) - len(name)]
    current = [other for other, entry in block.by_name.items() if entry.removed is None]
    if not name[:1].isalpha():
        return "delete it; comments start with #"
    longer = [other for other in current if len(name) > 5 and name.lower() in other]
    near = longer if len(longer) == 1 else get_close_matches(name.lower(), current, n=1, cutoff=0.7)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    elsewhere = _paths_of(name)
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere[:3])}?"
    return "delete it; comments start with #"


def _paths_of(name: str) -> list[str]:
    return [path for path, last in _all_paths(ROOT, "") if last == name.lower()]


def _all_paths(block: Block, prefix: str) -> Iterator[tuple[str, str]]:
    for name, entry in block.by_name.items():
        if entry.removed is None:
            yield f"{prefix}{name}", name
            if isinstance(entry, Block):
                yield from _all_paths(entry, f"{prefix}{name}.")


def shown(value: Any) -> str:
    """A value as it is written in JSON, shortened."""
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
