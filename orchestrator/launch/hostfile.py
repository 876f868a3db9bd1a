"""DeepSpeed hostfiles: one ``HOST slots=N`` a line, ``#`` comments and blank lines allowed.

Stricter than DeepSpeed's own reader (``launcher/runner.py:_parse_hostfile``), which starts on the local machine alone when
the file is missing, reads ``slots=4x`` as 4, and takes two names of one machine for two machines.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil

from orchestrator.findings import Finding, error, warning
from orchestrator.planning.cluster_spec import MAX_DEVICES_PER_HOST, Host, is_loopback

_ENTRY = re.compile(r"(?P<name>\S+)\s+slots=(?P<slots>[0-9]+)(\s+#.*|\s*)")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_FIELD = "cluster.hostfile"
_FIX = "write HOST slots=N, N being all devices of the host"
_WITHOUT = "or use cluster.hosts and cluster.devices_per_host"
_LOOPBACK = "this machine (loopback)"
_KNOWN_HOSTS = Path("/etc/hosts")
_BYTE_ORDER_MARK = "\ufeff"

Identify = Callable[[str], str]
"""Host name -> what it stands for, the same for all names of one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A usable line: its number, and the host that it names."""

    number: int
    host: Host


def read_hostfile(path: Path) -> tuple[tuple[Host, ...], list[Finding]]:
    """The hosts of a hostfile in its order, which is the order of node ranks, and everything wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        message = f"hostfile {path} does not exist"
        return (), [error("hostfile-missing", _FIELD, message, f"correct the path, {_WITHOUT}")]
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        message = f"hostfile {path} cannot be read: {reason}"
        return (), [error("hostfile-unreadable", _FIELD, message, f"correct the path, {_WITHOUT}")]
    return parse_hostfile(text, source=str(path), identify=local_names().identify)


def parse_hostfile(text: str, *, source: str, identify: Identify) -> tuple[tuple[Host, ...], list[Finding]]:
    """The hosts in ``text``, and everything wrong with it, by lines of ``source``."""
    findings: list[Finding] = []
    if text.startswith(_BYTE_ORDER_MARK):
        text = text.removeprefix(_BYTE_ORDER_MARK)
        message = (
            f"{source}:1: a byte-order mark comes first, which DeepSpeed takes for a part of the first name; it is dropped"
        )
        findings.append(warning("hostfile-encoding", _FIELD, message, "save the file as UTF-8 without byte-order mark"))
    lines: list[_Line] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        entry = raw.strip()
        if not entry or entry.startswith("#"):
            continue
        problem, host = _host(entry, f"{source}:{number}: {entry!r}")
        if host is not None:
            lines.append(_Line(number=number, host=host))
        if problem is not None:
            findings.append(problem)
    findings += _duplicates(lines, source, identify)
    findings += _loopbacks(lines, source)
    if not lines and not findings:
        findings.append(error("hostfile-empty", _FIELD, f"hostfile {source} names no host", f"add a line: {_FIX}"))
    return tuple({line.host.name: line.host for line in lines}.values()), findings


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNames:
    """What this machine knows without asking anybody: its own names and addresses, and ``/etc/hosts``."""

    own: frozenset[str]
    addresses: Mapping[str, str]

    def identify(self, name: str) -> str:
        """The machine behind ``name`` as far as it is known here; loopback names and this machine's own are one."""
        plain = name.lower().rstrip(".")
        address = self.addresses.get(plain, plain)
        if plain in self.own or _canonical(address) in self.own or is_loopback(plain) or is_loopback(address):
            return _LOOPBACK
        return _canonical(address)


def local_names() -> LocalNames:
    """Read them. No name server is asked."""
    try:
        known = _KNOWN_HOSTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        known = ""
    own = {socket.gethostname().lower(), socket.gethostname().lower().split(".")[0]}
    own |= {_canonical(entry.address.partition("%")[0]) for entries in psutil.net_if_addrs().values() for entry in entries}
    addresses: dict[str, str] = {}
    for line in known.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            addresses.setdefault(name.lower(), address)
    return LocalNames(own=frozenset(own), addresses=addresses)


def _canonical(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def _host(entry: str, where: str) -> tuple[Finding | None, Host | None]:
    """The host of a line, what is wrong with the line, or both: a host that cannot be used still counts as named."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return error("hostfile-line", _FIELD, f"{where}: {_reason(entry)}", _suggestion(entry)), None
    name, digits = match["name"], match["slots"].lstrip("0") or "0"
    if digits == "0":
        message = f"{where}: a host without slots has no part in the run"
        return error("hostfile-slots", _FIELD, message, "remove the line, or write its devices"), None
    if len(digits) > 9 or int(digits) > MAX_DEVICES_PER_HOST:
        message = f"{where}: no host has more than {MAX_DEVICES_PER_HOST} devices"
        return error("hostfile-slots", _FIELD, message, _FIX), None
    return _name_finding(name, where), Host(name=name, slots=int(digits))


def _name_finding(name: str, where: str) -> Finding | None:
    if ":" in name:
        message = f"{where}: filters and pdsh cut a name at its colons, so IPv6 addresses do not work"
        fix = "give the address a name in /etc/hosts or ~/.ssh/config and write that"
        return error("hostfile-address", _FIELD, message, fix)
    if "@" in name:
        message = f"{where}: filters cut a name at @, and the first is the address that ranks meet at"
        fix = "write the host alone, and its User in ~/.ssh/config"
        return error("hostfile-address", _FIELD, message, fix)
    if not _NAME.fullmatch(name):
        return error("hostfile-address", _FIELD, f"{where}: {name!r} is no host name", "use letters, digits, and . _ -")
    return None


def _reason(entry: str) -> str:
    if re.search(r"\bslots=[0-9]+[^\s0-9]", entry):
        return "after the number of slots comes something else, which DeepSpeed leaves out unsaid"
    if re.search(r"slots\s*=\s*[0-9]+", entry) and not re.search(r"slots=[0-9]", entry):
        return "there are spaces round ="
    if "max_slots" in entry or "max-slots" in entry:
        return "DeepSpeed knows no max_slots"
    if re.fullmatch(r"\S+:[0-9]+", entry):
        return "slots are not written with a colon"
    return "it is not HOST slots=N"


def _suggestion(entry: str) -> str:
    """The line as it was probably meant."""
    host = re.match(r"[^\s:=]+", entry)
    numbers = re.findall(r"[=:]\s*([0-9]+)", entry)
    if host is None or not numbers:
        return _FIX
    named = re.findall(r"(?<![A-Za-z_-])slots\s*=\s*([0-9]+)", entry, re.IGNORECASE)
    return f"write {host[0]} slots={(named or numbers)[0]}"


def _duplicates(lines: list[_Line], source: str, identify: Identify) -> Iterator[Finding]:
    """Lines that name a machine which an earlier line names, under whatever name."""
    first: dict[str, _Line] = {}
    for line in lines:
        machine = identify(line.host.name)
        earlier = first.setdefault(machine, line)
        if earlier is line:
            continue
        same = line.host.name == earlier.host.name
        message = f"{source}:{line.number}: {line.host.name} is " + (
            f"in line {earlier.number} already" if same else f"the machine of line {earlier.number}, {earlier.host.name}"
        )
        yield error("hostfile-duplicate", _FIELD, message, "keep one line a machine, with all its slots")


def _loopbacks(lines: list[_Line], source: str) -> Iterator[Finding]:
    if all(is_loopback(line.host.name) for line in lines):
        return
    for line in lines:
        if is_loopback(line.host.name):
            message = f"{source}:{line.number}: {line.host.name} means itself to every host, and there are others"
            fix = "write the name by which the other hosts reach this machine"
            yield error("hostfile-loopback", _FIELD, message, fix)
