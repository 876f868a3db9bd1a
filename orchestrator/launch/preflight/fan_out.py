"""A script on every host at once: piped to its Python over the system's ssh or srun, never more than so many at a time.

No process stays behind, however this ends: each ssh has a session of its own, which is killed when its host has answered, has
taken too long, or the user has had enough (Ctrl-C, SIGTERM, SIGHUP). The launching host is asked without ssh.

For tests there is one seam: the environment variable ``ORCHESTRATOR_PROBE_FACTS`` names a JSON file ``{HOST: {FACT: VALUE}}``,
with host names as the hostfile has them and ``*`` for all hosts. Its values replace those that the probe of the host found
(``probe.FACTS`` has the names); objects are merged, everything else is taken whole::

    {
     "node2": {"memory": {"limit_bytes": 1073741824, "available_bytes": 1073741824}, "packages": {"torch": "2.12.0"}},
     "node3": {"accelerators": {"driver": "570", "cuda": "12.8", "devices": [{"name": "A", "total_bytes": 8, "free_bytes": 7}]}}
    }
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from orchestrator.config.enums import LauncherBackend
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding
from orchestrator.launch.preflight.probe import MARK
from orchestrator.launch.preflight.unreachable import failure, no_answer
from orchestrator.launch.remote import ssh_argv
from orchestrator.launch.setup_lines import after_setup
from orchestrator.launch.slurm.transport import srun_argv
from orchestrator.launch.transport import is_this_machine

INJECTED_FACTS = "ORCHESTRATOR_PROBE_FACTS"
_ASIDE = "exec 3<&0 4>&1 </dev/null >&2"
_BACK = "exec <&3 >&4 3<&- 4>&-"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a host answered, or why it did not. Times are ours, seconds since the epoch."""

    host: str
    value: Mapping[str, Any] | None
    failure: Finding | None
    asked: float
    received: float


def script(program: ModuleType, request: Mapping[str, Any]) -> str:
    """The text to pipe to a host's Python: a module of the standard library alone, and a call of its ``main``."""
    return f"{inspect.getsource(program)}\nmain({json.dumps(request)!r})\n"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end, or until a signal asks to stop: then every process of it is gone.

    Raises:
        KeyboardInterrupt: it was asked to stop.
    """

    async def stoppable() -> T:
        task = asyncio.current_task()
        assert task is not None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_IGN:
                    # started with nohup
                    continue
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(stoppable())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def ask_all(
    hosts: Sequence[str],
    text: str,
    config: RunConfig,
) -> dict[str, Answer]:
    """Pipe ``text`` to every host, ``preflight.parallel`` of them at a time; answers come in the order of the hosts."""
    room = asyncio.Semaphore(config.preflight.parallel)

    async def ask_one(host: str) -> Answer:
        async with room:
            return await _ask(host, text, config)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask_one(host)) for host in hosts]
    return {host: task.result() for host, task in zip(hosts, tasks, strict=True)}


@asynccontextmanager
async def held_open(host: str, text: str, config: RunConfig) -> AsyncIterator[Answer]:
    """A script on ``host`` that goes on while the context lasts; gives its first answer."""
    asked = time.time()
    async with _started(host, config) as process:
        assert process.stdin is not None and process.stdout is not None
        value: Mapping[str, Any] | None = None
        try:
            async with asyncio.timeout(config.preflight.timeout):
                process.stdin.write(text.encode())
                process.stdin.close()
                while value is None and (line := await process.stdout.readline()):
                    value = _answer_in(line.decode(errors="replace"))
                problem = None
                if value is None:
                    assert process.stderr is not None
                    said = (await process.stderr.read()).decode(errors="replace")
                    problem = failure(host, exit_code=await process.wait(), said=said)
        except TimeoutError:
            problem = no_answer(host, config.preflight.timeout)
        yield Answer(host=host, value=value, failure=problem, asked=asked, received=time.time())


async def _ask(host: str, text: str, config: RunConfig) -> Answer:
    asked = time.time()
    async with _started(host, config) as process:
        try:
            async with asyncio.timeout(config.preflight.timeout):
                printed, said = (part.decode(errors="replace") for part in await process.communicate(text.encode()))
        except TimeoutError:
            problem = no_answer(host, config.preflight.timeout)
            return Answer(host=host, value=None, failure=problem, asked=asked, received=time.time())
    received = time.time()
    value = _answer_in(printed)
    if value is None:
        assert process.returncode is not None
        problem = failure(host, exit_code=process.returncode, said=said or printed)
        return Answer(host=host, value=None, failure=problem, asked=asked, received=received)
    return Answer(host=host, value=_with_injected(host, value), failure=None, asked=asked, received=received)


@asynccontextmanager
async def _started(host: str, config: RunConfig) -> AsyncIterator[asyncio.subprocess.Process]:
    """The Python of ``host``, waiting for its script; when the context ends it, and whatever it started here, is gone."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *_argv(host, config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            limit=1 << 24,
        )
    )
    try:
        # one that is cancelled half-way through its start is waited for by asyncio for ever
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(await starting)
        raise
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _argv(host: str, config: RunConfig) -> list[str]:
    command = [sys.executable, "-I", "-"]
    if config.launcher.setup:
        # the user's lines run as before the workers, but neither read the script nor write among the answers
        command = after_setup([_ASIDE, *config.launcher.setup, _BACK], command)
    if is_this_machine(host):
        return command
    over_srun = config.launcher.backend is LauncherBackend.slurm
    return srun_argv(host, command) if over_srun else ssh_argv(host, command, config.launcher)


def _answer_in(printed: str) -> Mapping[str, Any] | None:
    """The last answer among what was printed: login scripts may print as well."""
    lines = [line[len(MARK) :] for line in printed.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    with contextlib.suppress(ValueError):
        value: Mapping[str, Any] = json.loads(lines[-1])
        return value
    return None


def _with_injected(host: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer with what a test says instead."""
    path = os.environ.get(INJECTED_FACTS)
    if not path or "unknown" not in value:
        return value
    by_host = json.loads(Path(path).read_text(encoding="utf-8"))
    return _merged(_merged(value, by_host.get("*", {})), by_host.get(host, {}))


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
