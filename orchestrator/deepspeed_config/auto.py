"""``"auto"`` values, and the Hugging Face Trainer's arguments that fill them or must agree with the file.

As ``HfTrainerDeepSpeedConfig`` of transformers 5.24 does it (``trainer_config_process`` when the arguments are made,
``trainer_config_finalize`` when the model and the number of steps are known).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from orchestrator.deepspeed_config.effective import AUTO
from orchestrator.deepspeed_config.keys.entry import Reader, boolean, integer, number, text
from orchestrator.deepspeed_config.keys.reading import Taken, Unclear, read_value
from orchestrator.deepspeed_config.lint_rules import LintContext, lint_rule
from orchestrator.deepspeed_config.lint_structure import shown
from orchestrator.deepspeed_config.read import Document, read_text
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity

FIELD = "hf_arguments"
RESOLVED = lint_rule("json-auto-resolved", 'what the Trainer writes for "auto"', Severity.info)
MISMATCH = lint_rule("json-hf-mismatch", "the file and the Trainer's arguments say the same", Severity.error)
ARGUMENTS = lint_rule("json-hf-arguments", "hf_arguments names a file with the Trainer's arguments", Severity.error)
STRICT = lint_rule("json-hf-strict", "a file for the Trainer is strict JSON", Severity.error)

ARGUMENT_KEYS = {
    key.name: key
    for key in (
        integer("per_device_train_batch_size", 8, minimum=1),
        integer("gradient_accumulation_steps", 1, minimum=1),
        number("learning_rate", 5e-5, minimum=0),
        number("adam_beta1", 0.9),
        number("adam_beta2", 0.999),
        number("adam_epsilon", 1e-8),
        number("weight_decay", 0.0),
        number("max_grad_norm", 1.0, minimum=0),
        number("warmup_steps", 0, minimum=0),
        number("warmup_ratio", None, optional=True, minimum=0, maximum=1),
        integer("max_steps", -1),
        boolean("fp16", False),
        boolean("bf16", False),
        boolean("fp16_full_eval", False),
        boolean("bf16_full_eval", False),
        boolean("auto_find_batch_size", False),
        boolean("save_on_each_node", False),
        boolean("push_to_hub", False),
        text("optim", None, optional=True),
    )
}
"""The TrainingArguments that reach a DeepSpeed configuration, with transformers' defaults."""

_PREFETCH = "zero_optimization.stage3_prefetch_bucket_size"
_PERSISTENCE = "zero_optimization.stage3_param_persistence_threshold"
_BUCKET = "zero_optimization.reduce_bucket_size"


def read_hf_arguments(path: str) -> tuple[dict[str, Any], list[Finding]]:
    """The Trainer's arguments in a JSON or YAML file, defaults filled in; and what is doubtful about them.

    Raises:
        ConfigurationError: the file cannot be read, or an argument is of the wrong kind.
    """
    content = read_text(Path(os.path.expanduser(path)), FIELD)  # noqa: PTH111 - Path's raises for unknown users
    try:
        given = _parsed(content)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        reason = getattr(problem, "problem", None) or "it is neither YAML nor JSON"
        raise ConfigurationError([ARGUMENTS(FIELD, f"{path}: {where}{reason}", "mend it")]) from None
    if not isinstance(given, dict):
        raise ConfigurationError([ARGUMENTS(FIELD, f"{path} is no mapping of arguments", "write NAME: VALUE lines")])
    arguments: dict[str, Any] = {name: key.default for name, key in ARGUMENT_KEYS.items()}
    findings: list[Finding] = []
    for name, value in given.items():
        findings += _argument(str(name), value, arguments)
    errors = [finding for finding in findings if finding.severity is Severity.error]
    if errors:
        raise ConfigurationError(errors)
    return arguments, findings


def _parsed(content: str) -> Any:
    """JSON where it is JSON: 2e-5 is a number there, and a text to YAML."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return yaml.safe_load(content)


def _argument(name: str, value: Any, arguments: dict[str, Any]) -> Iterator[Finding]:
    """Take one argument over; those that do not reach DeepSpeed are left alone unless they look misspelt."""
    path = f"{FIELD}.{name}"
    if name not in ARGUMENT_KEYS:
        near = get_close_matches(name, ARGUMENT_KEYS, n=1, cutoff=0.85)
        if near and not name.startswith("per_device_eval"):
            yield ARGUMENTS(path, f"the Trainer has no argument {name}", f"did you mean {near[0]}?", Severity.warning)
        return
    reading = read_value(ARGUMENT_KEYS[name], value, Reader.plain)
    if isinstance(reading.meant, Unclear):
        yield ARGUMENTS(path, f"{shown(value)} is not {reading.wanted}", f"set it to {reading.wanted}")
        return
    if reading.taken is not Taken.exactly:
        message = f"{shown(value)} is text to YAML and to the Trainer; {shown(reading.meant)} is assumed"
        yield ARGUMENTS(path, message, f"write {shown(reading.meant)} (YAML wants a dot: 5.0e-5)", Severity.warning)
    arguments[name] = reading.meant


@dataclass(slots=True)
class _Filling:
    """A configuration being filled."""

    values: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)

    def node(self, path: str) -> tuple[dict[str, Any] | None, str]:
        """The mapping that holds ``path``, and the last name of it."""
        *outer, last = path.split(".")
        node: Any = self.values
        for name in outer:
            node = node.get(name) if isinstance(node, dict) else None
        return (node if isinstance(node, dict) else None), last

    def fill(self, path: str, value: Any, source: str, *, must_match: bool = True) -> None:
        """Write ``value`` for ``"auto"``; hold any other value against it."""
        node, name = self.node(path)
        if node is None:
            return
        given = node.get(name)
        if given == AUTO:
            node[name] = value
            self.findings.append(RESOLVED(path, f'"auto" becomes {shown(value)}: {source}', "nothing; compile writes it"))
        elif must_match and given is not None and given != value:
            message = f"{shown(given)} in the file, {shown(value)} by the Trainer's {source}; it refuses to start"
            self.findings.append(MISMATCH(path, message, f'write {shown(value)} or "auto", or change {source.split(" ")[0]}'))


def resolve_auto(document: Document, context: LintContext) -> tuple[dict[str, Any], list[Finding]]:
    """The values of a file as the Trainer hands them to DeepSpeed; without ``context.hf_arguments`` as they are."""
    arguments = context.hf_arguments
    filling = _Filling(deepcopy(document.values))
    if arguments is None:
        return filling.values, []
    if not document.is_strict:
        message = "the Trainer reads the file as strict JSON and stops at comments, trailing commas and unquoted keys"
        filling.findings.append(STRICT("deepspeed_json", message, "remove them; compile writes strict JSON"))
    _process(filling, arguments, context)
    _finalize(filling, arguments, context)
    return filling.values, filling.findings


def _process(filling: _Filling, arguments: Mapping[str, Any], context: LintContext) -> None:
    """``trainer_config_process``: what is known before the model."""
    micro, accumulation = arguments["per_device_train_batch_size"], arguments["gradient_accumulation_steps"]
    fixed = not arguments["auto_find_batch_size"]
    filling.fill("train_micro_batch_size_per_gpu", micro, "per_device_train_batch_size", must_match=fixed)
    filling.fill("gradient_accumulation_steps", accumulation, "gradient_accumulation_steps")
    train = context.num_devices * micro * accumulation
    source = f"per_device_train_batch_size {micro} x {accumulation} x {context.num_devices} processes"
    filling.fill("train_batch_size", train, source, must_match=fixed)
    filling.fill("gradient_clipping", arguments["max_grad_norm"], "max_grad_norm")
    filling.fill("optimizer.params.lr", arguments["learning_rate"], "learning_rate")
    betas = [arguments["adam_beta1"], arguments["adam_beta2"]]
    filling.fill("optimizer.params.betas", betas, "adam_beta1 and adam_beta2")
    filling.fill("optimizer.params.eps", arguments["adam_epsilon"], "adam_epsilon")
    filling.fill("optimizer.params.weight_decay", arguments["weight_decay"], "weight_decay")
    filling.fill("scheduler.params.warmup_min_lr", 0, "always 0", must_match=False)
    filling.fill("scheduler.params.warmup_max_lr", arguments["learning_rate"], "learning_rate")
    if arguments["save_on_each_node"] and isinstance(filling.values.setdefault("checkpoint", {}), dict):
        filling.values["checkpoint"]["use_node_local_storage"] = True
        message = "the Trainer sets it to true: save_on_each_node"
        filling.findings.append(RESOLVED("checkpoint.use_node_local_storage", message, "nothing; compile writes it"))
    filling.fill("fp16.enabled", arguments["fp16"] or arguments["fp16_full_eval"], "fp16")
    filling.fill("bf16.enabled", arguments["bf16"] or arguments["bf16_full_eval"], "bf16")


def _finalize(filling: _Filling, arguments: Mapping[str, Any], context: LintContext) -> None:
    """``trainer_config_finalize``: what needs the model's width or the number of steps."""
    zero, _ = filling.node("zero_optimization.stage")
    stage3 = zero is not None and zero.get("stage") == 3
    hidden = context.hidden_size
    if hidden is not None:
        filling.fill(_BUCKET, hidden * hidden, f"hidden_size {hidden} squared", must_match=False)
        if stage3:
            filling.fill(_PREFETCH, int(0.9 * hidden * hidden), f"0.9 x hidden_size {hidden} squared", must_match=False)
            filling.fill(_PERSISTENCE, 10 * hidden, f"10 x hidden_size {hidden}", must_match=False)
    if not stage3:
        for path, default in ((_PREFETCH, 50_000_000), (_PERSISTENCE, 100_000)):
            filling.fill(path, default, "DeepSpeed's default; it is not used below stage 3", must_match=False)
    _scheduler(filling, arguments)


def _scheduler(filling: _Filling, arguments: Mapping[str, Any]) -> None:
    total, path = arguments["max_steps"], "scheduler.params.total_num_steps"
    if total > 0:
        filling.fill(path, total, "max_steps")
    warmup = arguments["warmup_steps"] or arguments["warmup_ratio"] or 0
    if warmup >= 1 or warmup == 0 or total > 0:
        steps = int(warmup) if warmup >= 1 else math.ceil(max(total, 0) * warmup)
        filling.fill("scheduler.params.warmup_num_steps", max(1, steps), "warmup_steps")
