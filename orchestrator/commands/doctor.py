"""``doctor``: what this machine has, and what it lacks to run the configuration."""

from __future__ import annotations

from orchestrator.commands.result import HOST_NOT_READY, OK, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.findings import has_error
from orchestrator.launch.machine import Machine, inspect_machine
from orchestrator.launch.preflight import machine_findings
from orchestrator.report import text

HELP = """Look at this machine: versions, devices, compiled DeepSpeed ops, tools, and what to install. Starts nothing.

Examples:
  orchestrator doctor
  orchestrator doctor cluster=dgx_h100 offload=optimizer_cpu
  orchestrator doctor output=json"""


def run(config: RunConfig) -> CommandResult:
    """Inspect this machine for the needs of ``config``."""
    machine = inspect_machine()
    findings = machine_findings(machine, config)
    ready = not has_error(findings)
    payload = {"ready": ready, "findings": [finding.to_dict() for finding in findings], "machine": machine_dict(machine)}
    report = [text.machine_table(machine), *text.findings_report(findings), text.readiness(ready, machine.hostname)]
    return CommandResult(exit_code=OK if ready else HOST_NOT_READY, payload=payload, text=report)


def machine_dict(machine: Machine) -> dict[str, object]:
    """The machine as JSON; sizes are bytes, ages seconds."""
    return {
        "hostname": machine.hostname,
        "python": machine.python,
        "packages": dict(machine.packages),
        "devices": [
            {"name": device.name, "total_bytes": device.total_bytes, "free_bytes": device.free_bytes}
            for device in machine.devices
        ],
        "num_cores": machine.num_cores,
        "memory_bytes": machine.memory_bytes,
        "available_memory_bytes": machine.available_memory_bytes,
        "shared_memory_bytes": machine.shared_memory_bytes,
        "tools": dict(machine.tools),
        "extensions_dir": str(machine.extensions_dir),
        "built_ops": dict(machine.built_ops),
        "build_locks": {str(path): age for path, age in machine.build_locks.items()},
    }
