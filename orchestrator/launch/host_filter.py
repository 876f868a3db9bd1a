"""``cluster.include`` and ``cluster.exclude``: which devices of the hosts a run uses, in the syntax of DeepSpeed's launcher."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from orchestrator.findings import Finding, error
from orchestrator.planning.cluster_spec import Host

_INCLUDE, _EXCLUDE = "cluster.include", "cluster.exclude"
_FORM = "write HOST:SLOT,SLOT@HOST: @ between hosts, single slots with commas"

_Slots = dict[str, tuple[int, ...] | None]
"""Host name -> its slots that a filter names, ``None`` for all."""


def filtered_hosts(
    hosts: Sequence[Host], *, include: str | None, exclude: str | None
) -> tuple[tuple[Host, ...], list[Finding]]:
    """The hosts with the devices that are left, in the order of ``hosts``; or what is wrong with the filter."""
    if include is not None and exclude is not None:
        message = f"{include!r} is given together with {_EXCLUDE}={exclude!r}, and DeepSpeed takes one of them"
        return (), [error("host-filter-both", _INCLUDE, message, f"set {_INCLUDE}=null or {_EXCLUDE}=null")]
    field, text = (_INCLUDE, include) if include is not None else (_EXCLUDE, exclude)
    if text is None:
        return tuple(hosts), []
    named, findings = _parse(text, field, hosts)
    if findings:
        return (), findings
    left = [_kept(host, named, includes=include is not None) for host in hosts]
    kept = tuple(host for host in left if host is not None)
    if not kept:
        message = f"{text!r} leaves none of the devices of {', '.join(host.name for host in hosts)}"
        return (), [error("host-filter-empty", field, message, f"leave a device, or set {field}=null")]
    return kept, []


def filter_text(hosts: Sequence[Host]) -> str | None:
    """The ``--include`` that leaves these devices of their hosts; ``None`` when all of them are used."""
    if all(host.devices is None for host in hosts):
        return None
    return "@".join(f"{host.name}:{','.join(map(str, host.device_numbers))}" for host in hosts)


def _kept(host: Host, named: _Slots, *, includes: bool) -> Host | None:
    present = host.device_numbers
    listed = present if named.get(host.name, ()) is None else named.get(host.name, ()) or ()
    left = tuple(number for number in present if (number in listed) == includes)
    if left == present:
        return host
    return replace(host, slots=len(left), devices=left) if left else None


def _parse(text: str, field: str, hosts: Sequence[Host]) -> tuple[_Slots, list[Finding]]:
    known = {host.name: host for host in hosts}
    named: _Slots = {}
    findings: list[Finding] = []
    for part in text.split("@"):
        name, colon, listed = part.partition(":")
        problem = _syntax(part)
        if problem is not None:
            findings.append(error("host-filter-syntax", field, f"{part!r} in {text!r}: {problem}", _FORM))
        elif name not in known:
            near = get_close_matches(name, list(known), n=1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else f"the hosts are {', '.join(known)}"
            findings.append(error("host-filter-host", field, f"{name!r} is no host of the cluster", fix))
        elif name in named:
            message = f"{name!r} appears twice in {text!r}"
            findings.append(error("host-filter-host", field, message, "name each host once, with all its slots"))
        else:
            slots = tuple(map(int, listed.split(","))) if colon else None
            named[name] = slots
            findings += _out_of_range(known[name], slots or (), field)
    return named, findings


def _syntax(part: str) -> str | None:
    """What is wrong with the words about one host."""
    name, colon, slots = part.partition(":")
    if not name:
        return "a host is missing"
    if part != part.strip() or " " in part:
        return "there is a space"
    if "," in name:
        return "hosts are separated by @, not by a comma"
    if not colon:
        return None
    if re.search(r"[0-9]+-[0-9]+", slots):
        return "DeepSpeed knows no ranges of slots"
    if ":" in slots:
        return "there are two colons; hosts are separated by @"
    if not slots or slots.startswith(",") or slots.endswith(",") or ",," in slots:
        return "a slot is missing"
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", slots):
        return "slots are numbers from 0 up, no names of devices and no other hosts"
    return None


def _out_of_range(host: Host, slots: Sequence[int], field: str) -> list[Finding]:
    wrong = [slot for slot in slots if slot not in host.device_numbers]
    if not wrong:
        return []
    message = f"{host.name} has the slots 0 to {host.slots - 1}, and not {', '.join(map(str, wrong))}"
    fix = f"count from 0, or write slots={max(wrong) + 1} in the hostfile: slots counts all devices of a host"
    return [error("host-filter-slot", field, message, fix)]
