"""Where the ranks meet: an address of the first host that all others reach, and a port of it that is free."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error
from orchestrator.launch import reach
from orchestrator.launch.facts import HostFacts
from orchestrator.launch.fan_out import ask_all, held_open, script

_CALL_SECONDS = 5.0
_RULE = "master-address"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPoint:
    """``MASTER_ADDR`` and ``MASTER_PORT`` of a run; an address is ``None`` where one host is alone."""

    address: str | None
    port: int


async def meeting_point(
    config: RunConfig, facts: Mapping[str, HostFacts]
) -> tuple[MeetingPoint | None, dict[str, list[Finding]]]:
    """Try it out: the first of the hosts listens for a moment on its port, the others call its addresses.

    ``facts`` are those of all hosts, in their order. Without a meeting point there are findings, by host.
    """
    first, *others = facts
    port = config.launcher.master_port or facts[first].free_port
    if port is None:
        fix = "name a port that is free there: launcher.master_port=29500"
        return None, {first: [error("master-port", "launcher.master_port", "no free port was found on this host", fix)]}
    if not others:
        return MeetingPoint(address=None, port=port), {}
    named = config.launcher.master_addr
    addresses = [named] if named else candidates(facts)
    request: dict[str, Any] = {"port": port, "token": secrets.token_hex(8), "seconds": config.preflight.timeout}
    listener = script(reach, {**request, "task": "listen"})
    callers = script(reach, {**request, "task": "connect", "addresses": addresses, "connect_seconds": _CALL_SECONDS})
    async with held_open(first, listener, config) as opened:
        if opened.value is None or not opened.value["listening"]:
            reason = opened.failure or _taken(port, str((opened.value or {}).get("reason")))
            return None, {first: [reason]}
        answers = await ask_all(others, callers, config)
    failures = {host: [answer.failure] for host, answer in answers.items() if answer.failure is not None}
    if failures:
        return None, failures
    said = {host: answer.value for host, answer in answers.items() if answer.value is not None}
    reached = [address for address in addresses if all(calls[address] is None for calls in said.values())]
    if reached:
        return MeetingPoint(address=reached[0], port=port), {}
    return None, {host: [finding] for host, finding in _unreached(first, port, addresses, said).items()}


def candidates(facts: Mapping[str, HostFacts]) -> list[str]:
    """Addresses of the first host that may do: those in a network in which all hosts have an address come first.

    An address that another host has as well (a bridge for containers) means that host there, and is left out.
    """
    first, *others = (entry.addresses for entry in facts.values())
    of_others = [{address for address, _ in addresses} for addresses in others]
    networks = [{ip_interface(f"{address}/{prefix}").network for address, prefix in addresses} for addresses in others]

    def shared(entry: tuple[str, int]) -> bool:
        own = ip_interface(f"{entry[0]}/{entry[1]}").network
        return all(own in known for known in networks)

    usable = [entry for entry in first if not any(entry[0] in known for known in of_others)]
    return [address for address, _ in sorted(usable, key=lambda entry: not shared(entry))]


def _taken(port: int, reason: str) -> Finding:
    fix = "stop the other job, choose another port, or leave it null for a free one"
    return error("master-port", "launcher.master_port", f"port {port} of this host cannot be listened on: {reason}", fix)


def _unreached(
    first: str, port: int, addresses: Sequence[str], said: Mapping[str, Mapping[str, str | None]]
) -> dict[str, Finding]:
    """A finding for each host that does not reach the address which most do."""
    if not addresses:
        fix = "name an address that all hosts reach: launcher.master_addr=ADDRESS"
        return {first: error(_RULE, "launcher.master_addr", "this host has no address that the others do not have too", fix)}
    success = Counter(address for calls in said.values() for address, problem in calls.items() if problem is None)
    best = max(addresses, key=lambda address: success[address])
    fix = f"open the firewall between the hosts (port {port}, and those of NCCL or gloo), or name another: launcher.master_addr"
    return {
        host: error(_RULE, "launcher.master_addr", f"{first} is not reached at {best}:{port}: {calls[best]}", fix)
        for host, calls in said.items()
        if calls[best] is not None
    }
