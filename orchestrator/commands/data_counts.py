"""What a run's prepared tokens amount to, where they can be read from here."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity, info
from orchestrator.planning.plan import Plan
from orchestrator.tokens.counts import count_data, count_findings
from orchestrator.tokens.sources import TokenPath, evaluation_paths, is_there, open_sources, tokenizer_findings, training_paths


def with_data(config: RunConfig, plan: Plan) -> Plan:
    """``plan`` with the count of its data, and with what speaks against them; as it is where none are prepared, or none read.

    A script of the user's own reads its own.

    The hosts may have data that this machine has not: that they are missing here is no more than a remark.
    """
    named = [*training_paths(config.data), *evaluation_paths(config.data)]
    if config.training.script is not None or not named or _has_bad_options(plan):
        return plan
    absent = [_not_counted(entry) for entry in named if not is_there(entry.path)]
    if absent:
        return plan.with_findings(absent)
    try:
        stores, evaluation = open_sources(config.data, model_vocab_size=None if plan.model is None else plan.model.vocab_size)
        if plan.layout is None:
            return plan
        count = count_data(
            config.data,
            stores,
            evaluation,
            steps=config.training.max_steps,
            train_batch_size=plan.layout.train_batch_size,
        )
    except ConfigurationError as problem:
        return plan.with_findings(list(problem.findings))
    findings = [*tokenizer_findings([*stores.values(), *evaluation.values()]), *count_findings(count, config.data)]
    return replace(plan.with_findings(findings), data=count.to_dict())


def _has_bad_options(plan: Plan) -> bool:
    """Whether options of the data or the steps are refused, so that there is nothing to count with."""
    return any(
        finding.severity is Severity.error and finding.field.startswith(("data.", "training.")) for finding in plan.findings
    )


def _not_counted(entry: TokenPath) -> Finding:
    message = f"{entry.path} is not on this machine: its tokens, sequences and epochs are not counted"
    return info("data-count", entry.option, message, "nothing to do if the hosts of the run have it")
