"""Why a host gave no answer, from what ssh, srun, its shell or its Python said, and what mends it."""

from __future__ import annotations

import re
import sys

from orchestrator.findings import Finding, error
from orchestrator.launch.remote import UNREACHABLE
from orchestrator.launch.setup_lines import FAILED as SETUP_FAILED

RULE = "host-unreachable"
_NO_SUCH_PROGRAM = (126, 127)
_HOSTFILE, _SSH = "cluster.hostfile", "launcher.ssh_arguments"

_OF_TASKS = re.compile(r"^srun: (?:error: \S+: task \d+: |cluster configuration lacks ).*\n?", re.MULTILINE)
"""What srun adds: how a task ended, which its exit code says as well, and that no cores can be bound, which is not needed."""
_NO_STEP = re.compile(r"^srun: (?:error|fatal): (.+)$", re.MULTILINE)

_SAYINGS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
        _HOSTFILE,
        "its name does not resolve",
        "correct the name, or give it an address in DNS, /etc/hosts or ~/.ssh/config",
    ),
    (
        r"Connection refused",
        _SSH,
        "no ssh server answers there",
        "start sshd on {host}; if it listens on another port: 'launcher.ssh_arguments=[-p,\"PORT\"]'",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Operation timed out",
        _HOSTFILE,
        "it cannot be reached",
        "is it switched on, and does a firewall let port 22 pass? try: ssh {host} true",
    ),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|host key is known",
        _SSH,
        "its host key is not the known one, or not known yet",
        "log in once by hand and confirm the key: ssh {host}; after a reinstallation: ssh-keygen -R {host}",
    ),
    (
        r"Permission denied|Too many authentication failures|No supported authentication methods",
        _SSH,
        "ssh is not let in without a question",
        "put your key there: ssh-copy-id {host} (a passphrase needs ssh-agent); ssh -o BatchMode=yes {host} true must work",
    ),
    (
        r"Bad configuration option|Bad owner or permissions|Can't open user config|no argument after keyword",
        _SSH,
        "ssh does not accept its own configuration",
        "correct ~/.ssh/config or launcher.ssh_arguments",
    ),
    (
        r"kex_exchange_identification|Connection (closed|reset)|Broken pipe|not responding",
        _SSH,
        "the connection was closed before an answer came",
        "look at sshd's log on {host} and, behind a jump host, raise its MaxStartups or set preflight.parallel=8",
    ),
)
"""What ssh says, the field that it speaks of, what it means, and the fix."""


def failure(host: str, *, exit_code: int, said: str) -> Finding:
    """The finding for a host whose probe ended with ``exit_code`` and printed ``said``, and no answer."""
    said = _OF_TASKS.sub("", said)
    last = _last_line(said)
    if step := _NO_STEP.search(said):
        fix = f"look at the host: scontrol show node {host}; try by hand in the job: srun --overlap --nodelist={host} hostname"
        return error(RULE, "launcher.backend", f"srun cannot start anything on it: {step[1]}", fix)
    if SETUP_FAILED in said:
        reason = _last_line(said.partition(SETUP_FAILED)[0])
        fix = "correct the line, or install what it names on every host"
        return error("host-setup", "launcher.setup", f"{last} ({reason})", fix)
    if exit_code == UNREACHABLE:
        for pattern, field, meaning, fix in _SAYINGS:
            if re.search(pattern, said, re.IGNORECASE):
                return error(RULE, field, f"{meaning} (ssh: {last})", fix.format(host=host))
        return error(RULE, _SSH, f"ssh failed: {last}", f"try by hand: ssh {host} true")
    if exit_code in _NO_SUCH_PROGRAM:
        fix = "install the same environment at the same path on every host, or share it over the network"
        return error("host-python", "launcher", f"there is no Python at {sys.executable} ({last})", fix)
    fix = f"try by hand: ssh {host} {sys.executable} -c 'print(1)'"
    return error("host-python", "launcher", f"the probe ended with exit code {exit_code}: {last}", fix)


def no_answer(host: str, seconds: float) -> Finding:
    """The finding for a host that was silent until its time was up."""
    message = f"no answer within preflight.timeout={seconds:g} s"
    return error(
        RULE, "preflight.timeout", message, f"log in and see what hangs: ssh {host}; if it is slow: a larger preflight.timeout"
    )


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][-300:].removeprefix("ssh: ") if lines else "it printed nothing"
