"""Where the ranks meet: an address of the first host that all others reach."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error
from orchestrator.launch.preflight import reach
from orchestrator.launch.preflight.facts import HostFacts
from orchestrator.launch.preflight.fan_out import ask_all, held_open, script

_CALL_SECONDS = 5.0
_RULE = "master-unreached"


async def master_address(config: RunConfig, facts: Mapping[str, HostFacts]) -> tuple[str | None, dict[str, Finding]]:
    """Try it out: the first of the hosts listens for a moment, the others call its addresses.

    ``facts`` are those of all hosts, in their order. Gives the address that all reach, or a finding for each host that does
    not; for a host alone neither. Without ``launcher.master_port`` any port is tried: a run takes one that is free when it
    starts.
    """
    first, *others = facts
    if not others:
        return None, {}
    named = config.launcher.master_addr
    addresses = [named] if named else candidates(facts)
    if not addresses:
        fix = "name an address that all hosts reach: launcher.master_addr=ADDRESS"
        return None, {
            first: error(_RULE, "launcher.master_addr", "this host has no address that the others do not have too", fix)
        }
    request: dict[str, Any] = {"token": secrets.token_hex(8), "seconds": config.preflight.timeout}
    listener = script(reach, {**request, "task": "listen", "port": config.launcher.master_port or 0})
    async with held_open(first, listener, config) as opened:
        port = None if opened.value is None else opened.value["port"]
        if opened.value is None or port is None:
            return None, {first: opened.failure or _taken(config, str((opened.value or {})["reason"]))}
        request |= {"task": "connect", "addresses": addresses, "port": port, "connect_seconds": _CALL_SECONDS}
        answers = await ask_all(others, script(reach, request), config)
    failures = {host: answer.failure for host, answer in answers.items() if answer.failure is not None}
    said = {host: answer.value for host, answer in answers.items() if answer.value is not None}
    reached = [address for address in addresses if all(calls[address] is None for calls in said.values())]
    if reached and not failures:
        return reached[0], {}
    return None, {**failures, **({} if reached else _unreached(first, port, addresses, said))}


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


def _taken(config: RunConfig, reason: str) -> Finding:
    message = f"port {config.launcher.master_port or 'any'} of this host cannot be listened on: {reason}"
    fix = "stop the other job, choose another port, or leave it null for a free one"
    return error("master-port", "launcher.master_port", message, fix)


def _unreached(
    first: str, port: int, addresses: Sequence[str], said: Mapping[str, Mapping[str, str | None]]
) -> dict[str, Finding]:
    """A finding for each host that does not reach the address which most do."""
    success = Counter(address for calls in said.values() for address, problem in calls.items() if problem is None)
    best = max(addresses, key=lambda address: success[address])
    fix = f"open the firewall between the hosts (port {port}, and those of NCCL or gloo), or name another: launcher.master_addr"
    return {
        host: error(_RULE, "launcher.master_addr", f"{first} is not reached at {best}:{port}: {calls[best]}", fix)
        for host, calls in said.items()
        if calls[best] is not None
    }
