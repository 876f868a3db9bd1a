"""Every host of a run looked at before it starts: probe all at once, judge each, compare them, try out where ranks meet."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config.enums import DataSource, OffloadDevice
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.operators import needed_operators
from orchestrator.findings import Finding, error, has_error
from orchestrator.launch.preflight import probe
from orchestrator.launch.preflight.comparison import odd_ones
from orchestrator.launch.preflight.facts import (
    FLASH_ATTENTION,
    OPERATORS,
    PACKAGES,
    TENSORBOARD,
    TOOLS,
    HostFacts,
    facts_from_probe,
)
from orchestrator.launch.preflight.fan_out import Answer, ask_all, run, script
from orchestrator.launch.preflight.joined import JoinedFinding, joined
from orchestrator.launch.preflight.judgement import NVME_PATH, machine_findings, port_findings, run_findings
from orchestrator.launch.preflight.rendezvous import master_address
from orchestrator.launch.transport import python_path
from orchestrator.planning.cluster_spec import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """One host: its facts, ``None`` when it gave no answer, and what was found to say about it."""

    host: Host
    facts: HostFacts | None
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def is_ready(self) -> bool:
        """Whether the host can take part."""
        return not has_error(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """All hosts, in the order of their ranks."""

    hosts: tuple[HostCheck, ...]
    master_address: str | None
    """An address of the first host that all others reach; ``None`` for a host alone, or where none was found."""
    findings: tuple[Finding, ...] = ()
    """What speaks of no single host."""

    @property
    def is_ready(self) -> bool:
        """Whether a run may start."""
        return not has_error(self.findings) and all(check.is_ready for check in self.hosts)

    @property
    def joined(self) -> list[JoinedFinding]:
        """The findings of the hosts, those of several as one."""
        return joined({check.host.name: check.findings for check in self.hosts})

    def with_findings(self, further: Mapping[str, Sequence[Finding]]) -> ClusterCheck:
        """The same with further findings, by host."""
        hosts = [replace(check, findings=(*check.findings, *further.get(check.host.name, ()))) for check in self.hosts]
        return replace(self, hosts=tuple(hosts))


def check_machine(config: RunConfig, host: Host) -> HostCheck:
    """Look at this machine for the needs of ``config``, whatever run it is."""
    request = _request(replace(config, launcher=replace(config.launcher, master_port=None)), token=None) | {
        "folders": {},
        "files": {},
    }
    answers = run(ask_all([host.name], script(probe, request), config))
    return _machine_check(host, answers[host.name], config, world_size=host.slots)


def check_cluster(config: RunConfig, hosts: Sequence[Host], *, checkpoint_bytes: int) -> ClusterCheck:
    """Look at every host for this run, whose paths are absolute. Nothing is left behind anywhere.

    Raises:
        KeyboardInterrupt: the user had enough; no process of it goes on here.
    """
    return run(_check_cluster(config, hosts, checkpoint_bytes))


async def _check_cluster(config: RunConfig, hosts: Sequence[Host], checkpoint_bytes: int) -> ClusterCheck:
    world_size = sum(host.slots for host in hosts)
    with _token(config, hosts) as token:
        answers = await ask_all([host.name for host in hosts], script(probe, _request(config, token=token)), config)
    checks = {host.name: _machine_check(host, answers[host.name], config, world_size=world_size) for host in hosts}
    facts = {name: check.facts for name, check in checks.items() if check.facts is not None}
    further: dict[str, list[Finding]] = {
        name: run_findings(entry, checkpoint_bytes=checkpoint_bytes) for name, entry in facts.items()
    }
    for name, finding in odd_ones(facts):
        further[name].append(finding)
    first = hosts[0].name
    if first in facts:
        further[first] += port_findings(facts[first], config)
    address = None
    if len(facts) == len(hosts) and not has_error(further[first]):
        address, unreached = await master_address(config, facts)
        for name, finding in unreached.items():
            further[name].append(finding)
    return ClusterCheck(hosts=tuple(checks.values()), master_address=address).with_findings(further)


def _machine_check(host: Host, answer: Answer, config: RunConfig, *, world_size: int) -> HostCheck:
    seconds = answer.received - answer.asked
    if answer.value is None:
        assert answer.failure is not None
        return HostCheck(host=host, facts=None, findings=(answer.failure,), seconds=seconds)
    try:
        facts = facts_from_probe(answer.value, asked=answer.asked, received=answer.received)
    except (KeyError, TypeError) as problem:
        message = f"the probe's answer is none that can be read: {problem!r}"
        finding = error("host-python", "launcher", message, "report it, with the output of orchestrator preflight output=json")
        return HostCheck(host=host, facts=None, findings=(finding,), seconds=seconds)
    findings = machine_findings(facts, config, host, world_size=world_size)
    return HostCheck(host=host, facts=facts, findings=tuple(findings), seconds=seconds)


def _request(config: RunConfig, *, token: Mapping[str, str] | None) -> dict[str, Any]:
    """What the probe is to look at. Paths are the same on all hosts."""
    uses_nvme = OffloadDevice.nvme in (config.offload.optimizer_device, config.offload.param_device)
    own_script = config.training.script is not None
    folders = {
        "run_dir": config.run_dir,
        NVME_PATH: config.offload.nvme_path if uses_nvme else None,
        "data.cache_dir": None if own_script or config.data.source is DataSource.synthetic else config.data.cache_dir,
    }
    files = {
        "training.script": config.training.script,
        "data.path": config.data.path,
        "data.tokenizer_path": config.data.tokenizer_path,
        "model.pretrained": config.model.pretrained,
    }
    return {
        "seconds": config.preflight.timeout,
        "search": python_path().split(os.pathsep) if python_path() else [],
        "packages": [*PACKAGES, FLASH_ATTENTION, TENSORBOARD],
        "folders": {option: path for option, path in folders.items() if path},
        "files": {option: path for option, path in files.items() if path},
        "token": token,
        "port": config.launcher.master_port,
        "extensions_dir": os.environ.get("TORCH_EXTENSIONS_DIR"),
        "operators": sorted({*OPERATORS, *needed_operators(config)}),
        "tools": TOOLS,
    }


@contextmanager
def _token(config: RunConfig, hosts: Sequence[Host]) -> Iterator[Mapping[str, str] | None]:
    """A file beside the run directory while the others look for it; nothing for a host alone, or where none can be written."""
    if len(hosts) == 1:
        yield None
        return
    run_dir = Path(config.run_dir)
    place = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    token = {"path": str(place / f".orchestrator_{secrets.token_hex(8)}"), "text": secrets.token_hex(16)}
    try:
        Path(token["path"]).write_text(token["text"], encoding="ascii")
    except OSError:
        yield None
        return
    try:
        yield token
    finally:
        with suppress(OSError):
            Path(token["path"]).unlink()
