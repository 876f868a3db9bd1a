"""Rules about how the workers are started: their environment variables, and the address they meet at."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.config.enums import LauncherBackend
from orchestrator.findings import Finding, Severity, error
from orchestrator.planning.cluster_spec import is_loopback
from orchestrator.planning.rules.registry import Fact, RuleContext, rule

_FIELD = "launcher.environment"
_LAUNCHER_OWN = {
    **dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"), "the parallel sizes"),
    "MASTER_ADDR": "launcher.master_addr",
    "MASTER_PORT": "launcher.master_port",
    "CUDA_VISIBLE_DEVICES": "cluster.include",
    "DS_ACCELERATOR": "cluster.accelerator",
    "DS_ENV_FILE": "launcher.environment",
}
"""Variables that the launcher sets itself, and the option that says what they become."""


@rule("environment-name", "environment variables have names", Severity.error)
def environment_name(context: RuleContext) -> Iterator[Finding]:
    """A shell exports them on other hosts."""
    for name in context.config.launcher.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            fix = "use letters, digits and _"
            yield error("environment-name", f"{_FIELD}.{name}", f"{name!r} is no name of an environment variable", fix)


@rule("environment-launcher", "no variable is given that the launcher sets", Severity.error)
def environment_launcher(context: RuleContext) -> Iterator[Finding]:
    """DeepSpeed's node launcher writes over ranks and addresses; the others would contradict the plan."""
    for name, value in context.config.launcher.environment.items():
        if name in _LAUNCHER_OWN:
            message = f"{value!r} is set by the launcher itself, from {_LAUNCHER_OWN[name]}"
            fix = f"remove it and use {_LAUNCHER_OWN[name]}"
            yield error("environment-launcher", f"{_FIELD}.{name}", message, fix)


@rule("environment-value", "values reach the workers as they are written", Severity.error, Fact.cluster)
def environment_value(context: RuleContext) -> Iterator[Finding]:
    """Through pdsh DeepSpeed writes ``export NAME=VALUE;`` without quotes: the remote shell cuts and expands it."""
    remote = len(context.cluster.hosts) > 1 or context.config.launcher.backend is LauncherBackend.pdsh
    for name, value in context.config.launcher.environment.items():
        unsafe = re.search(r"[^A-Za-z0-9_./:,=@%+^~-]" if remote else r"[\x00\n\r]", value)
        if unsafe:
            where = "the shells of other hosts" if remote else "an environment file"
            message = f"{value!r} holds {unsafe[0]!r}, which {where} do not pass on as it is"
            fix = "write it in a file that every host reads, or use letters, digits and _ . / : , = @ % + - only"
            yield error("environment-value", f"{_FIELD}.{name}", message, fix)


@rule("master-address", "workers of all hosts reach the address they meet at", Severity.error, Fact.cluster)
def master_address(context: RuleContext) -> Iterator[Finding]:
    """A loopback address is another machine on every host."""
    address, hosts = context.config.launcher.master_addr, context.cluster.hosts
    if address is None:
        return
    if not re.fullmatch(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", address):
        message = f"{address!r} is neither a host name nor an address; the port is launcher.master_port"
        fix = "write the name or address alone"
    elif len(hosts) > 1 and is_loopback(address):
        message = f"{address!r} means itself to each of the {len(hosts)} hosts"
        fix = f"set launcher.master_addr=null for {hosts[0].name}, or its address in the network of the hosts"
    else:
        return
    yield error("master-address", "launcher.master_addr", message, fix)
