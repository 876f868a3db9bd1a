"""The agents of a run, one a host or one on this machine: what they are told, and whether one, or its host, has failed."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from orchestrator.config.enums import LauncherBackend
from orchestrator.launch.agent_link import AgentLink, Events
from orchestrator.launch.ending.status import Ending, Status
from orchestrator.launch.pdsh import remove_private, without, write_private
from orchestrator.launch.processes import Output, meaning
from orchestrator.launch.protocol import BEAT_SECONDS, StartOrder
from orchestrator.launch.remote import UNREACHABLE
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.transport import SshTransport, Transport, is_this_machine, python_command
from orchestrator.run_dir import SWAP_OWNER

CLOSE_SECONDS = 5.0
"""For a process that has nothing more to do."""
_READY_SECONDS = 60.0
"""For Python to start on a host that was reached."""
_PDSH_FAILURE = re.compile(r"^pdsh@\S+: (\S+): .*exit code (\d+)")


class Agents:
    """Everything that a controller has to do with its agents. ``private`` are variables that nobody may read."""

    def __init__(self, spec: LaunchSpec, transport: Transport, *, private: Mapping[str, str], output: Output) -> None:
        self._spec = spec
        self._transport = transport
        self._private = private
        self._output = output
        self._events: Events = queue.Queue()
        self._ready_until = float("inf")
        self._pdsh_failure: tuple[str, int] | None = None
        self.links: list[AgentLink] = []

    @property
    def are_ready(self) -> bool:
        """Whether every host has answered."""
        return all(link.ready for link in self.links)

    @property
    def are_over(self) -> bool:
        """Whether none of them will say anything more."""
        return all(link.is_over for link in self.links)

    @property
    def saw_everything_end(self) -> bool:
        """Whether every process of the run was seen to end; through pdsh those of other hosts are not seen."""
        return not self._over_pdsh and all(link.ended for link in self.links)

    @property
    def _over_pdsh(self) -> bool:
        return self._spec.backend is LauncherBackend.pdsh

    def connect(self) -> None:
        """Start an agent on every host.

        Raises:
            OSError: the program that reaches hosts is missing.
        """
        spec = self._spec
        self._ready_until = time.monotonic() + spec.connect_seconds + _READY_SECONDS
        for host in spec.agent_hosts:
            self.links.append(self._agent_on(host, self._transport))
        if self._over_pdsh and spec.master_port is None and not is_this_machine(spec.hosts[0]):
            # this one only says which port is free there
            self.links.append(self._agent_on(spec.hosts[0], SshTransport(spec.ssh_settings)))

    def start(self, attempt: Path) -> None:
        """Have the launcher started on every host, with a port that is free on the first. All of them are ready."""
        scouts = self.links[len(self._spec.agent_hosts) :]
        first = (scouts or self.links)[0].ready
        assert first is not None
        port = self._spec.master_port or int(first["port"])
        for scout in scouts:
            scout.close(CLOSE_SECONDS)
            self.links.remove(scout)
        if self._over_pdsh:
            write_private(attempt, self._private)
        for link in self.links:
            link.start(self._order(self._spec.argv(link.node_rank, port)))

    def wait(self, seconds: float) -> None:
        """Until one of them says something, but for so long at most."""
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=seconds)
            while True:
                self._events.get_nowait()

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Say again and again that the controller lives: a disk that keeps it waiting must not end the run."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_SECONDS):
                for link in list(self.links):
                    link.beat()

        thread = threading.Thread(target=beat, name="beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(CLOSE_SECONDS)

    def failures(self) -> Iterator[Ending]:
        """What has failed. An agent that cannot be heard any more is given up."""
        for link in self.links:
            if link.exit_code is not None:
                yield from _launcher_failure(link, link.exit_code)
            elif link.closed:
                yield _failure(_lost(link), link.host)
            elif link.is_silent:
                yield _failure(f"nothing is heard of {link.host} any more: the host, or the link to it, was lost", link.host)
                link.drop()
            elif link.ready is None and time.monotonic() > self._ready_until:
                yield _failure(f"no agent answers on {link.host}", link.host)
                link.drop()
        if self._pdsh_failure is not None:
            host, code = self._pdsh_failure
            if code == UNREACHABLE:
                yield _failure(f"the node launcher on {host} was killed, or the link to its host was lost", host)
            else:
                yield _failure(f"{host}: {meaning(code)}", host, is_explained=False)

    def stop(self) -> None:
        """Have everything ended; a second time, at once."""
        for link in self.links:
            link.stop()

    def drop(self) -> None:
        """Give up those that have not ended."""
        for link in self.links:
            if not link.is_over:
                link.drop()

    def close(self, attempt: Path) -> None:
        """Let go of all of them. They end what they have not ended yet."""
        with contextlib.suppress(OSError):
            remove_private(attempt)
        _close(self.links, CLOSE_SECONDS)

    def clean_hosts(self) -> None:
        """Remove what the run has left on the disks of hosts that had no agent."""
        if not self._over_pdsh or self._spec.swap_directory is None:
            return
        over_ssh = SshTransport(self._spec.ssh_settings)
        cleaners = [self._agent_on(host, over_ssh) for host in self._spec.hosts]
        for link in cleaners:
            link.start(self._order(()))
        _close(cleaners, self._spec.connect_seconds + _READY_SECONDS)

    def _agent_on(self, host: str, transport: Transport) -> AgentLink:
        process = transport.start(host, python_command("orchestrator.launch.agent"))
        output = partial(self._take, f"{host}: " if len(self._spec.agent_hosts) > 1 else "")
        return AgentLink(node_rank=len(self.links), host=host, process=process, events=self._events, output=output)

    def _take(self, prefix: str, line: str) -> None:
        """A line that a host has printed; on the thread that reads it."""
        self._output.write(prefix + line)
        if self._over_pdsh and self._pdsh_failure is None and (failed := _PDSH_FAILURE.match(line)):
            self._pdsh_failure = failed[1], int(failed[2])

    def _order(self, argv: tuple[str, ...]) -> StartOrder:
        spec = self._spec
        return StartOrder(
            argv=without(self._private, argv) if self._over_pdsh and argv else argv,
            environment=spec.environment if self._over_pdsh else {**spec.environment, **self._private},
            working_directory=spec.working_directory,
            setup=spec.setup_here,
            stop_seconds=spec.stop_seconds,
            # at SIGTERM DeepSpeed's pdsh runner ends every DeepSpeed job of this Python on all hosts, by name
            stop_signal="SIGKILL" if self._over_pdsh else "SIGTERM",
            swap_directory=spec.swap_directory,
            swap_owner=spec.swap_owner,
            swap_owner_file=SWAP_OWNER,
        )


def _close(links: Sequence[AgentLink], seconds: float) -> None:
    """Let all of them end, within so long together."""
    until = time.monotonic() + seconds
    for link in links:
        link.close_orders()
    for link in links:
        link.close(max(until - time.monotonic(), 0.0))


def _launcher_failure(link: AgentLink, exit_code: int) -> Iterator[Ending]:
    if link.ranks_left and exit_code <= 0:
        left = ", ".join(map(str, link.ranks_left))
        yield _failure(f"the node launcher on {link.host} has died, and left rank {left} behind", link.host)
    elif exit_code:
        yield _failure(f"{link.host}: {meaning(exit_code)}", link.host, is_explained=False)


def _lost(link: AgentLink) -> str:
    code = link.process.poll()
    if link.ready is None:
        return f"{link.host} cannot be reached, or starts no agent (exit code {code})"
    if code == UNREACHABLE:
        return f"the agent on {link.host} has gone: it was killed, or the link to its host was lost"
    return f"the agent on {link.host} has gone (exit code {code})"


def _failure(reason: str, host: str, *, is_explained: bool = True) -> Ending:
    return Ending(status=Status.failed, reason=reason, host=host, is_explained=is_explained)
