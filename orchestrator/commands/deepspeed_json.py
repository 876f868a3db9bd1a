"""``deepspeed_json=FILE``: validate and compile a DeepSpeed JSON that the user brings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from math import prod
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version
from rich.text import Text

from orchestrator.commands.planned import fixes_for, plan_run
from orchestrator.commands.result import OK, REFUSED, CommandResult
from orchestrator.config.enums import Command
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.auto import RESOLVED, STRICT, read_hf_arguments, resolve_auto
from orchestrator.deepspeed_config.correct import Change, complete, correct
from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.ingest import ASSUMPTION, OWNED_SECTIONS, assumptions, in_json_terms, ingest, json_words
from orchestrator.deepspeed_config.keys.entry import NEWEST_READ, READ_RELEASES
from orchestrator.deepspeed_config.lint import LINT_RULES, LintContext, effective_values, lint
from orchestrator.deepspeed_config.lint_batch import Batch, batch_of, sequence_parallel_size
from orchestrator.deepspeed_config.lint_rules import lint_rule
from orchestrator.deepspeed_config.read import FIELD, Document, read_document
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity, has_error
from orchestrator.planning.capacity import CAPACITY_RULES
from orchestrator.planning.parameter_names import named_parameters
from orchestrator.planning.plan import Plan
from orchestrator.planning.rules.registry import RULES, Fact
from orchestrator.report import text
from orchestrator.units import DTYPE_BYTES, format_bytes

__all__ = ["LINT_RULES", "compile", "completed_words", "unsupported", "validate"]

WORDS = lint_rule("json-words", "the words beside a file say only what it cannot", Severity.error)
VERSION = lint_rule("json-version", "deepspeed_version is one whose keys are known", Severity.error)
DEVICES = lint_rule("json-devices", "the number of devices is stated, once", Severity.error)
NO_ESTIMATE = lint_rule("json-no-estimate", "memory is estimated where the file says clearly what would run", Severity.info)

HOST_COPIES = lint_rule(
    "json-host-copies", "a host has room for the copies of the model that its processes load", Severity.warning
)

T = TypeVar("T")

_ASSUMED_CLUSTER = "dgx_h100"
_ASSUMED_DEVICES_PER_HOST = 8
_SMALLEST = 3
_STATES_MEMORY = (
    "zero_optimization",
    "fp16",
    "bf16",
    "torch_autocast",
    "data_types",
    "tensor_parallel",
    "sequence_parallel_size",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
"""Keys without whose clear meaning an estimate of the memory would speak of another run."""
_BLOCKS = {
    "zero": "zero_optimization",
    "offload": "zero_optimization.offload_optimizer and offload_param",
    "precision": "fp16 or bf16",
    "lr_scheduler": "scheduler",
    "communication": "communication_data_type",
    "training": "the batch sizes",
}
"""What of a file the groups of the same meaning stand for."""
_SAID_BY_THE_LINT = frozenset({"nvme-path"})
"""Rules of the planner that the lint states more exactly, for each block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A DeepSpeed JSON that was read, and all that is known of the run it would start."""

    values: Mapping[str, Any]
    changes: Sequence[Change]
    context: LintContext
    effective: Effective
    batch: Batch | None
    config: RunConfig
    plan: Plan


def completed_words(words: Sequence[str]) -> list[str]:
    """``words`` that bring a JSON, with the cluster that ``world_size=N`` stands for where they name none."""
    named = _named(words)
    size = named.get("world_size", "")
    if FIELD not in named:
        return list(words)
    words = [*words, "training=default"]
    if _names(words, "cluster") or not size.isdigit() or not 0 < int(size) <= 10**6:
        return list(words)
    per_host = next(count for count in range(_ASSUMED_DEVICES_PER_HOST, 0, -1) if int(size) % count == 0)
    cluster = f"cluster={_ASSUMED_CLUSTER}"
    return [*words, cluster, f"cluster.devices_per_host={per_host}", f"cluster.hosts={int(size) // per_host}"]


def validate(config: RunConfig, words: Sequence[str]) -> CommandResult:
    """Lint and plan the JSON of ``config``; ``words`` are those of the command line.

    Raises:
        ConfigurationError: the file, or the words beside it, cannot be used at all.
    """
    return _report(_check(config, words, corrected=False))


def compile(config: RunConfig, words: Sequence[str]) -> CommandResult:
    """The JSON of ``config`` with all that can be corrected without a doubt, or a refusal with what cannot.

    Raises:
        ConfigurationError: the file, or the words beside it, cannot be used at all.
    """
    checked = _check(config, words, corrected=True)
    if not checked.plan.fits or checked.batch is None:
        return _report(checked)
    completed, more = complete(checked.values, checked.effective, checked.batch)
    changes = [*checked.changes, *more]
    rest = [finding for finding in checked.plan.findings if finding.rule != RESOLVED.name]
    payload = {
        "verdict": checked.plan.verdict,
        "deepspeed_json": completed,
        "changes": [change.to_dict() for change in changes],
        "findings": [finding.to_dict() for finding in rest],
    }
    remarks = [Text(f"changed: {change.field}: {change.message}") for change in changes] or [Text("nothing was changed")]
    return CommandResult(
        exit_code=OK,
        payload=payload,
        text=[Text(json.dumps(completed, indent=2, ensure_ascii=False))],
        remarks=[*remarks, *text.findings_report(rest)],
    )


def unsupported(config: RunConfig) -> None:
    """Refuse a DeepSpeed JSON where none can be used, and the words that only go with one.

    Raises:
        ConfigurationError: ``config`` brings either.
    """
    if config.deepspeed_json is None:
        beside = {
            name: getattr(config, name) for name in ("deepspeed_version", "hf_arguments", "client_optimizer", "world_size")
        }
        given = [name for name, value in beside.items() if value is not None]
        if given:
            message = "it has no effect without deepspeed_json=FILE"
            raise ConfigurationError([WORDS(name, message, "name the file, or leave it out") for name in given])
        return
    if config.command is Command.launch:
        raise ConfigurationError([not_launched()])
    message = f"{config.command.value} does not take a DeepSpeed JSON; validate and compile do"
    raise ConfigurationError([WORDS(FIELD, message, "leave it out")])


def not_launched() -> Finding:
    """What to do with a DeepSpeed JSON instead of launching it."""
    message = "the orchestrator writes the DeepSpeed configuration of what it launches"
    fix = (
        "correct the file with compile and start your script without us (deepspeed SCRIPT --deepspeed_config FILE), "
        "or say the same in words (zero=stage3 ...) and launch that, with your own script too: training.script=FILE"
    )
    return WORDS(FIELD, message, fix)


def _check(config: RunConfig, words: Sequence[str], *, corrected: bool) -> Checked:
    assert config.deepspeed_json is not None
    problems = [*_word_findings(config, words)]
    document = _collected(problems, lambda: read_document(str(config.deepspeed_json)))
    arguments, remarks = None, []
    if config.hf_arguments is not None:
        found = _collected(problems, lambda: read_hf_arguments(str(config.hf_arguments)))
        arguments, remarks = found if found is not None else (None, [])
    version = _collected(problems, lambda: _version(config))
    if problems or document is None or version is None:
        raise ConfigurationError(problems)
    context = _context(config, words, version, arguments)
    if config.world_size not in (None, context.num_devices):
        message = f"{config.world_size} is not the {context.num_devices} devices of {config.cluster.name}"
        raise ConfigurationError([DEVICES("world_size", message, "leave world_size or the cluster out")])
    if version > Version(NEWEST_READ):
        message = f"the keys of {version} are taken to be those of {NEWEST_READ}, the newest that was read"
        remarks = [*remarks, VERSION("deepspeed_version", message, "nothing", Severity.info)]
    if not _names(words, "cluster"):
        cluster = f"{config.cluster.hosts} host(s) with {config.cluster.devices_per_host} x {config.cluster.device_name}"
        message = f"no cluster is named: world_size={config.world_size} is planned as {cluster}"
        remarks = [*remarks, ASSUMPTION("cluster", message, "say cluster=PRESET cluster.hosts=N")]
    checked = _checked(config, document, context, words, remarks, corrected=corrected)
    return checked if _names(words, "model") else _without_model(checked)


def _checked(
    config: RunConfig,
    document: Document,
    context: LintContext,
    words: Sequence[str],
    remarks: Sequence[Finding],
    *,
    corrected: bool,
) -> Checked:
    resolved, filled = resolve_auto(document, context)
    values, changes = correct(resolved, context)
    effective = effective_values(values, context)
    if corrected:
        filled = [finding for finding in filled if finding.rule != STRICT.name]
        changes = [*_filled(filled), *changes]
    remaining = lint(values, context)
    found = [*remarks, *filled, *(remaining if corrected else lint(resolved, context))]
    batch = batch_of(effective, context)
    ingested = ingest(config, effective, batch)
    plan = plan_run(ingested)
    found += [note for note in assumptions(ingested, effective) if not _names(words, note.field.split(".")[0])]
    found += _host_copies(plan) if _names(words, "model") else []
    return Checked(
        values=values,
        changes=changes,
        context=context,
        effective=effective,
        batch=batch,
        config=ingested,
        plan=_joined(plan, found, effective, batch, doubt=_doubt([*filled, *remaining], effective)),
    )


def _host_copies(plan: Plan) -> list[Finding]:
    """What scripts need of RAM before DeepSpeed takes the model: each process has made all of it, unless in ``zero.Init``."""
    if plan.model is None or plan.cluster is None:
        return []
    copy = plan.model.num_parameters * DTYPE_BYTES[plan.settings.dtype]
    processes, capacity = max(host.slots for host in plan.cluster.hosts), plan.cluster.host_memory_bytes
    if processes * copy <= capacity:
        return []
    message = (
        f"{processes} processes of a host that each load the model before DeepSpeed takes it hold "
        f"{format_bytes(processes * copy)} of {format_bytes(capacity)} of RAM"
    )
    fix = "nothing at stage 3 inside deepspeed.zero.Init; else load on the device, or one process after the other"
    return [HOST_COPIES("cluster.host_memory_gib", message, fix)]


def _without_model(checked: Checked) -> Checked:
    """``checked`` where no word names a model: nothing is said of the memory of the demo's."""
    plan = checked.plan
    note = NO_ESTIMATE("model", "no model is named, so nothing is said about memory", "say model=PRESET, or model=hf")
    findings = [finding for finding in plan.findings if not _is_about_the_model(finding)]
    stripped = replace(plan, model=None, memory=None, partition=None, time=None, time_unknown=None, findings=(*findings, note))
    return replace(checked, plan=stripped)


def _is_about_the_model(finding: Finding) -> bool:
    rule = RULES.get(finding.rule)
    by_rule = rule is not None and Fact.model in rule.needs
    return by_rule or finding.field.startswith("model.") or finding.rule in CAPACITY_RULES | {NO_ESTIMATE.name}


def _filled(findings: Iterable[Finding]) -> list[Change]:
    """What was written for ``"auto"``."""
    return [Change(field=finding.field, message=finding.message) for finding in findings if finding.rule == RESOLVED.name]


def _joined(plan: Plan, found: list[Finding], effective: Effective, batch: Batch | None, *, doubt: str | None) -> Plan:
    """``plan`` with the findings of the lint before its own, and without what a file in doubt makes meaningless."""
    own = [finding for finding in plan.findings if finding.rule not in _SAID_BY_THE_LINT]
    own = [finding for finding in in_json_terms(own, effective) if not _is_said(finding, found)]
    if doubt is not None:
        own = [finding for finding in own if finding.rule not in CAPACITY_RULES]
        message = f"memory is not estimated: {doubt}"
        found = [*found, NO_ESTIMATE(FIELD, message, "correct the errors first" if has_error(found) else "nothing")]
        plan = replace(plan, memory=None, partition=None, time=None, time_unknown=None)
    if batch is None:
        plan = replace(plan, layout=None)
    return replace(plan, findings=(*found, *own))


def _is_said(finding: Finding, found: Iterable[Finding]) -> bool:
    """Whether the lint has said as much about the same key."""
    order = list(Severity)
    return any(
        other.field == finding.field and order.index(other.severity) <= order.index(finding.severity)
        for other in found
        if other.severity is not Severity.info
    )


def _doubt(found: Iterable[Finding], effective: Effective) -> str | None:
    """Why the file, once corrected, does not say clearly enough what would run; ``None`` when it does."""
    for finding in found:
        if finding.severity is not Severity.error or finding.rule == "json-hf-mismatch":
            continue
        key = finding.field.split(".")[0].split("[")[0]
        meant = finding.fix.removeprefix("did you mean ").split(".")[0].rstrip("?")
        if key in _STATES_MEMORY or (finding.fix.startswith("did you mean ") and meant in _STATES_MEMORY):
            return f"{finding.field} is in doubt"
    if sequence_parallel_size(effective) > 1:
        return "Ulysses sequence parallelism (sequence_parallel_size) is not modelled"
    if effective.value("expert_parallel.enabled"):
        return "expert parallelism (expert_parallel) is not modelled"
    return None


def _context(config: RunConfig, words: Sequence[str], version: Version, arguments: dict[str, Any] | None) -> LintContext:
    """The run that the words beside the file describe: its devices, and its model where one is named."""
    named = plan_run(config)
    cluster, model = named.cluster, named.model if _names(words, "model") else None
    devices = cluster.num_devices if cluster is not None else max(1, config.world_size or 1)
    smallest: dict[str, int] = {}
    if model is not None:
        sizes = sorted((prod(own.shape), own.name) for own in named_parameters(model))
        smallest = {name: size for size, name in sizes[:_SMALLEST]}
    return LintContext(
        version=version,
        num_devices=devices,
        devices_per_host=min(host.slots for host in cluster.hosts) if cluster is not None else devices,
        accelerator=config.cluster.accelerator,
        tensor_parallel_size=max(1, config.parallelism.tensor_parallel_size),
        pipeline_parallel_size=max(1, config.parallelism.pipeline_parallel_size),
        hf_arguments=arguments,
        client_optimizer=config.client_optimizer,
        hidden_size=None if model is None else model.hidden_size,
        smallest_parameters=smallest,
    )


def _version(config: RunConfig) -> Version:
    """The DeepSpeed the file is for: the one that is named, the one installed here (never imported), or the newest read."""
    if config.deepspeed_version is None:
        try:
            return Version(metadata.version("deepspeed").split("+")[0])
        except (metadata.PackageNotFoundError, InvalidVersion):
            return Version(NEWEST_READ)
    try:
        version = Version(config.deepspeed_version)
    except InvalidVersion:
        message = f"{config.deepspeed_version!r} is no version"
        raise ConfigurationError([VERSION("deepspeed_version", message, f"write deepspeed_version={NEWEST_READ}")]) from None
    if version < Version(READ_RELEASES[0]):
        message = f"the keys of releases before {READ_RELEASES[0]} are not known"
        raise ConfigurationError([VERSION("deepspeed_version", message, f"name {READ_RELEASES[0]} or newer")])
    return version


def _word_findings(config: RunConfig, words: Sequence[str]) -> Iterable[Finding]:
    named = _named(words)
    for word in named:
        section = word.replace("/", ".").split(".")[0]
        if section in OWNED_SECTIONS:
            message = "the DeepSpeed JSON states this"
            key = _BLOCKS.get(word, json_words(word, _NOTHING))
            yield WORDS(word, message, f"leave the word out, and change {key} in the file")
        elif section in ("experiment", "sweep"):
            yield WORDS(word, "it sets options that the DeepSpeed JSON states", "name model= and cluster= (or world_size=)")
    if config.world_size is not None and config.world_size < 1:
        yield DEVICES("world_size", f"{config.world_size} is no number of devices", "set world_size=1 or more")
    elif config.world_size is None and not _names(words, "cluster"):
        message = "a JSON does not say how many devices it is for"
        yield DEVICES("world_size", message, "say world_size=N, or cluster=PRESET cluster.hosts=N")


def _report(checked: Checked) -> CommandResult:
    plan = checked.plan
    if plan.fits:
        return CommandResult(exit_code=OK, payload=plan.to_dict(), text=text.plan_report(plan))
    fixes = [
        replace(fix, overrides=tuple(json_words(word, checked.effective) for word in fix.overrides))
        for fix in (fixes_for(checked.config, plan) if plan.verdict == "infeasible" else ())
    ]
    payload = {**plan.to_dict(), "fixes": [fix.to_dict() for fix in fixes]}
    return CommandResult(exit_code=REFUSED, payload=payload, text=[*text.plan_report(plan), *text.fixes_report(plan, fixes)])


def _collected(problems: list[Finding], read: Callable[[], T]) -> T | None:
    """The result of ``read``; its findings go to ``problems`` when it refuses."""
    try:
        return read()
    except ConfigurationError as problem:
        problems += problem.findings
        return None


def _named(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.lstrip("+~").partition("=") for word in words)
    return {name: value.strip("'\" ") for name, _, value in pairs}


def _names(words: Sequence[str], group: str) -> bool:
    """Whether a word chooses ``group`` or an option of it."""
    return any(name.split(".")[0] == group for name in _named(words))


_NOTHING = Effective(values={}, version=Version(NEWEST_READ))
