"""``doctor``: what this machine has, and what it lacks to run the configuration."""

from __future__ import annotations

import os
from dataclasses import asdict

from rich.text import Text

from orchestrator.commands.result import HOST_NOT_READY, OK, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.launch.preflight.host_check import check_machine
from orchestrator.planning.cluster_spec import Host
from orchestrator.report import preflight as report
from orchestrator.report import text
from orchestrator.tracking.wandb_mode import decide_mode, has_key

HELP = """Look at this machine: versions, devices, compiled DeepSpeed ops, tools, and what to install. Starts nothing.

Examples:
  orchestrator doctor
  orchestrator doctor cluster=dgx_h100 offload=optimizer_cpu
  orchestrator doctor output=json"""


def run(config: RunConfig) -> CommandResult:
    """Look at this machine for the needs of ``config``, as ``preflight`` looks at every host of a run."""
    slots = 1 if config.cluster.hostfile else config.cluster.devices_per_host
    check = check_machine(config, Host(name="localhost", slots=slots))
    findings, facts = check.findings, check.facts
    decision = decide_mode(config.tracking.wandb, os.environ)
    payload = {
        "ready": check.is_ready,
        "findings": [finding.to_dict() for finding in findings],
        "machine": None if facts is None else asdict(facts),
        "wandb": {"mode": decision.mode.value, "key": has_key(os.environ)},
    }
    table = [] if facts is None else [report.machine_table(facts)]
    key = "there is a key" if has_key(os.environ) else "there is no key: WANDB_API_KEY or wandb login"
    tracked = Text(f"W&B would record {decision.mode.value} ({key})")
    name = "this host" if facts is None or facts.hostname is None else facts.hostname
    parts = [*table, tracked, *text.findings_report(findings), text.readiness(check.is_ready, name)]
    return CommandResult(exit_code=OK if check.is_ready else HOST_NOT_READY, payload=payload, text=parts)
