"""The plan of a run: everything that follows from the configuration, and everything that speaks against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import DeepSpeedSettings, resolve_settings
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity, has_error
from orchestrator.planning.balanced import balanced_partition
from orchestrator.planning.capacity import CAPACITY_RULES, capacity_findings, is_narrow
from orchestrator.planning.cluster_spec import ClusterSpec, Host, cluster_spec_from_config
from orchestrator.planning.cost.speeds import missing_facts
from orchestrator.planning.cost.step_time import StepTime, step_time
from orchestrator.planning.cost.training_step import training_step
from orchestrator.planning.frozen import frozen_stage_findings
from orchestrator.planning.layout import ParallelLayout, layout_from_config
from orchestrator.planning.memory.estimate import Estimator, MemoryEstimate
from orchestrator.planning.memory.shape import rank_shape
from orchestrator.planning.memory.side_by_side import ClosedForm, closed_forms
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_config
from orchestrator.planning.parameter_names import trainable_shares
from orchestrator.planning.partition import BALANCED, Partition, partition_layers, stages_per_rank
from orchestrator.planning.rules.check import check_rules, forbids_estimate
from orchestrator.planning.rules.registry import RuleContext
from orchestrator.planning.schedule import Schedule, unmet_condition

Verdict = Literal["feasible", "infeasible", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A finished plan. What could not be established is ``None``, and a finding says why."""

    model: ModelSpec | None
    cluster: ClusterSpec | None
    layout: ParallelLayout | None
    settings: DeepSpeedSettings
    partition: Partition | None
    memory: MemoryEstimate | None
    time: StepTime | None
    time_unknown: str | None
    """Why there is no time although there is a memory estimate."""
    findings: tuple[Finding, ...]
    data: Mapping[str, Any] | None = None
    """What the data amount to (``tokens.counts``), where they were counted; the planner itself reads no data."""

    @property
    def verdict(self) -> Verdict:
        """``invalid``: a rule is broken; ``infeasible``: legal, but something does not fit; else ``feasible``."""
        errors = [finding for finding in self.findings if finding.severity is Severity.error]
        if not errors:
            return "feasible"
        return "infeasible" if all(finding.rule in CAPACITY_RULES for finding in errors) else "invalid"

    @property
    def fits(self) -> bool:
        """Whether the run may start."""
        return self.verdict == "feasible"

    @property
    def fits_narrowly(self) -> bool:
        """Whether it fits, but with less free than ``planner.memory_margin`` somewhere."""
        return self.fits and is_narrow(self.findings)

    def with_findings(self, findings: Sequence[Finding]) -> Plan:
        """This plan with further findings, for callers that know more rules than the planner."""
        return replace(self, findings=(*self.findings, *findings))

    def to_dict(self) -> dict[str, Any]:
        """The object of ``validate output=json``."""
        unknown = {} if self.time_unknown is None else {"time_unknown": self.time_unknown}
        return {
            "verdict": self.verdict,
            "findings": [finding.to_dict() for finding in self.findings],
            "layout": None if self.layout is None else self.layout.to_dict(),
            "partition": None if self.partition is None or self.model is None else partition_entry(self.model, self.partition),
            "memory": None if self.memory is None else self.memory.to_dict(),
            "time": None if self.time is None else self.time.to_dict(),
            **unknown,
            "data": None if self.data is None else dict(self.data),
        }


def make_plan(
    config: RunConfig, *, hosts: Sequence[Host] | None, machine_memory_bytes: int, earlier_findings: Sequence[Finding] = ()
) -> Plan:
    """Plan ``config``. Never raises for what a user can get wrong: all of it is among the findings.

    ``hosts`` is what a hostfile said and ``machine_memory_bytes`` this machine's RAM (see ``cluster_spec_from_config``).
    ``earlier_findings`` are those of reading the hostfile; with an error among them the hosts are not known.
    """
    settings = resolve_settings(config)
    findings = list(earlier_findings)
    model, problems = _model(config)
    findings += problems
    cluster, problems = _cluster(config, hosts, machine_memory_bytes, earlier_findings)
    findings += problems
    layout, problems = (None, []) if cluster is None else layout_from_config(config, cluster.num_devices)
    findings += problems
    context = RuleContext(
        config=config, settings=settings, established_model=model, established_cluster=cluster, established_layout=layout
    )
    broken = check_rules(context)
    findings += broken
    partition: Partition | None = None
    memory: MemoryEstimate | None = None
    time: StepTime | None = None
    time_unknown: str | None = None
    if model is not None and cluster is not None and layout is not None and not forbids_estimate(broken):
        estimator = _estimator(config, model, cluster, layout, settings)
        partition = _partition(estimator)
        if estimator.trainable_shares is not None:
            findings += frozen_stage_findings(partition, estimator.trainable_shares)
        memory = estimator.estimate(partition)
        findings += capacity_findings(config, layout, memory)
        time_unknown = _time_unknown(estimator)
        time = None if time_unknown else step_time(training_step(estimator), partition)
    return Plan(
        model=model,
        cluster=cluster,
        layout=layout,
        settings=settings,
        partition=partition,
        memory=memory,
        time=time,
        time_unknown=time_unknown,
        findings=tuple(findings),
    )


def closed_forms_of(config: RunConfig, plan: Plan) -> tuple[ClosedForm, ...]:
    """The parts of a plan's estimate that can be counted in an engine; nothing where there is no estimate."""
    if plan.memory is None or plan.partition is None:
        return ()
    assert plan.model is not None
    assert plan.cluster is not None
    assert plan.layout is not None
    return closed_forms(_estimator(config, plan.model, plan.cluster, plan.layout, plan.settings), plan.partition)


def partition_entry(spec: ModelSpec, partition: Partition) -> dict[str, Any]:
    """The ``partition`` object of ``output=json``.

    ``boundaries`` are the first layer of each stage and ``num_layers``, the number of layers; ``layers`` their class names. Of
    a stage: the pipeline coordinate that holds it, its first and last layer, and its parameters before tensor parallelism.
    """
    return {
        "num_layers": len(partition.layer_names),
        "boundaries": list(partition.boundaries),
        "layers": list(partition.layer_names),
        "stages": [
            {
                "pipe": partition.coordinate_of(index),
                "layers": [stage.start, stage.stop - 1],
                "parameters": int(rank_shape(spec, [stage], tensor_parallel_size=1, persistence_threshold=0).parameters),
            }
            for index, stage in enumerate(partition.stages)
        ],
    }


def _estimator(
    config: RunConfig, model: ModelSpec, cluster: ClusterSpec, layout: ParallelLayout, settings: DeepSpeedSettings
) -> Estimator:
    return Estimator(
        config=config,
        spec=model,
        cluster=cluster,
        layout=layout,
        settings=settings,
        trainable_shares=trainable_shares(model, config.training.freeze) if config.training.freeze else None,
    )


def _partition(estimator: Estimator) -> Partition:
    parallelism, pp = estimator.config.parallelism, estimator.layout.pipeline_parallel_size
    held = stages_per_rank(parallelism.schedule, pp)
    if parallelism.partition_method == BALANCED and pp > 1:
        return balanced_partition(estimator, stages_per_rank=held)
    return partition_layers(
        estimator.spec,
        pipeline_parallel_size=pp,
        method=parallelism.partition_method,
        boundaries=parallelism.partition_boundaries,
        stages_per_rank=held,
    )


def _time_unknown(estimator: Estimator) -> str | None:
    """Why the run has no time: facts of the cluster are missing, or its schedule cannot be made."""
    layout = estimator.layout
    missing = missing_facts(estimator.cluster, estimator.settings.dtype)
    if missing is not None or layout.pipeline_parallel_size == 1:
        return missing
    return unmet_condition(
        Schedule(estimator.config.parallelism.schedule.value),
        num_stages=layout.pipeline_parallel_size,
        micro_batches=layout.gradient_accumulation_steps,
    )


def _model(config: RunConfig) -> tuple[ModelSpec | None, list[Finding]]:
    try:
        return model_spec_from_config(config.model), []
    except ConfigurationError as problem:
        return None, list(problem.findings)


def _cluster(
    config: RunConfig, hosts: Sequence[Host] | None, machine_memory_bytes: int, earlier_findings: Sequence[Finding]
) -> tuple[ClusterSpec | None, list[Finding]]:
    if has_error(earlier_findings):
        return None, []
    return cluster_spec_from_config(config.cluster, hosts=hosts, machine_memory_bytes=machine_memory_bytes)
