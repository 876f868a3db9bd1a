"""DeepSpeed hostfiles: one ``HOST slots=N`` a line, ``#`` comments and blank lines allowed."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.findings import Finding, error
from orchestrator.planning.cluster_spec import Host

_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9._@:-]+)\s+slots=(?P<slots>[0-9]+)\s*(#.*)?")
_FIELD = "cluster.hostfile"


def read_hostfile(path: Path) -> tuple[tuple[Host, ...], list[Finding]]:
    """The hosts of a hostfile in its order, which is the order of node ranks, and everything wrong with it.

    Stricter than DeepSpeed, which starts on the local machine alone when the file is missing and reads ``slots=4x`` as 4.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        message = f"hostfile {path} cannot be read: {reason}"
        return (), [error("hostfile", _FIELD, message, "correct the path, or use cluster.hosts and cluster.devices_per_host")]
    hosts: list[Host] = []
    findings: list[Finding] = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.fullmatch(entry)
        if match is None or int(match["slots"]) == 0:
            findings.append(
                error("hostfile", _FIELD, f"{path}:{number}: cannot use {entry!r}", "write HOST slots=N with N at least 1")
            )
        elif match["name"].lower() in {host.name.lower() for host in hosts}:
            fix = "keep one line a host, with all its slots"
            findings.append(error("hostfile", _FIELD, f"{path}:{number}: host {match['name']} appears twice", fix))
        else:
            hosts.append(Host(name=match["name"], slots=int(match["slots"])))
    if not hosts and not findings:
        findings.append(error("hostfile", _FIELD, f"hostfile {path} names no host", "add a line: HOST slots=N"))
    return tuple(hosts), findings
