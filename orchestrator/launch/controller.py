"""The controller of an attempt: an agent on every host, the lease of the ranks, and the decision that the run is over."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.config.enums import LauncherBackend
from orchestrator.config.schema import LauncherConfig
from orchestrator.control import OUTCOME, ControllerRecord, State, Stop, read_stop, write_controller
from orchestrator.launch.agent_link import AgentLink, Events
from orchestrator.launch.outcome import AgentOutcome, Outcome, Status
from orchestrator.launch.pdsh import remove_private, without, write_private
from orchestrator.launch.processes import Output, StopRequests, meaning
from orchestrator.launch.protocol import BEAT_SECONDS, StartOrder
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.transport import LocalTransport, SshTransport, Transport, is_this_machine, python_command
from orchestrator.lease import Lease
from orchestrator.presence import read_progress
from orchestrator.run_dir import LOG, RESULT, read_json, write_json

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_READY_SECONDS = 60.0
"""For Python to start on a host that was reached."""
_CLOSE_SECONDS = 5.0


class Controller:
    """Runs one attempt to its end. ``private`` are variables for the workers that nobody may read."""

    def __init__(
        self,
        attempt: Path,
        spec: LaunchSpec,
        *,
        private: Mapping[str, str],
        echo: Callable[[str], None],
        transport: Transport | None = None,
        detached: bool = False,
    ) -> None:
        self._attempt = attempt
        self._spec = spec
        self._private = private
        self._echo = echo
        self._transport = transport_of(spec) if transport is None else transport
        self._events: Events = queue.Queue()
        self._links: list[AgentLink] = []
        self._lease: Lease | None = None
        self._requests = StopRequests()
        self._failure: str | None = None
        self._stopped_by: str | None = None
        self._stops_sent = 0
        self._give_up = float("inf")
        self._beaten = self._looked = float("-inf")
        self._asked: Stop | None = None
        self._record = ControllerRecord(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=time.time(),
            backend=spec.backend.value,
            hosts=spec.hosts,
            detached=detached,
            state=State.connecting,
        )

    def run(self) -> Outcome:
        """Start, follow and end the attempt; nothing of it is left when this returns.

        Everything printed goes to the attempt's log, progress lines to ``echo`` as well. SIGINT, SIGTERM, SIGHUP or a stop
        request in the attempt end the run, a second one at once.
        """
        write_controller(self._attempt, self._record)
        with (self._attempt / LOG).open("w", encoding="utf-8", buffering=1) as log, self._requests.listening():
            self._output = Output(log, self._echo)
            self._lease = Lease(self._attempt)
            try:
                self._run()
            finally:
                self._end_lease()
                remove_private(self._attempt)
                for link in self._links:
                    link.close(_CLOSE_SECONDS)
        outcome = self._outcome()
        write_json(self._attempt / OUTCOME, outcome.to_dict())
        self._enter(State.ended)
        return outcome

    def _run(self) -> None:
        self._connect()
        while self._failure is None and self._stopped_by is None and not all(link.ready for link in self._links):
            self._tick()
        if self._failure is None and self._stopped_by is None:
            self._start()
        while not all(link.is_over for link in self._links):
            self._tick()

    def _connect(self) -> None:
        """Start an agent on every host; none starts anything before all are there."""
        self._ready_until = time.monotonic() + self._spec.connect_seconds + _READY_SECONDS
        for host in self._spec.agent_hosts:
            self._links += self._agent_on(host, self._transport)
        first = self._spec.hosts[0]
        if self._spec.backend is LauncherBackend.pdsh and self._spec.master_port is None and not is_this_machine(first):
            # this one only says which port is free there
            self._links += self._agent_on(first, SshTransport(ssh_settings(self._spec)))

    def _agent_on(self, host: str, transport: Transport) -> list[AgentLink]:
        try:
            process = transport.start(host, python_command("orchestrator.launch.agent"))
        except OSError as problem:
            self._fail(f"{host} cannot be reached: {problem}")
            return []
        prefix = f"{host}: " if len(self._spec.agent_hosts) > 1 else ""
        output = partial(self._take, prefix)
        return [AgentLink(node_rank=len(self._links), host=host, process=process, events=self._events, output=output)]

    def _take(self, prefix: str, line: str) -> None:
        self._output.write(prefix + line)

    def _start(self) -> None:
        """Have the launcher started on every host, with a port that is free on the first."""
        scouts = self._links[len(self._spec.agent_hosts) :]
        first = (scouts or self._links)[0].ready
        assert first is not None
        port = self._spec.master_port or int(first["port"])
        for scout in scouts:
            scout.close(_CLOSE_SECONDS)
            self._links.remove(scout)
        if self._spec.backend is LauncherBackend.pdsh:
            write_private(self._attempt, self._private)
        self._enter(State.running)
        for link in self._links:
            link.start(self._order(link.node_rank, port))

    def _order(self, node_rank: int, port: int) -> StartOrder:
        spec = self._spec
        over_pdsh = spec.backend is LauncherBackend.pdsh
        argv = spec.argv(node_rank, port)
        return StartOrder(
            argv=without(self._private, argv) if over_pdsh else argv,
            environment=spec.environment if over_pdsh else {**spec.environment, **self._private},
            working_directory=spec.working_directory,
            setup=spec.setup_here,
            stop_seconds=spec.stop_seconds,
            # at SIGTERM DeepSpeed's pdsh runner ends every DeepSpeed job of this Python on all hosts, by name
            stop_signal="SIGKILL" if over_pdsh else "SIGTERM",
            swap_directory=spec.swap_directory,
            swap_owner=spec.swap_owner,
        )

    def _tick(self) -> None:
        """One turn: hear the agents, keep the leases, look whether anything has to end."""
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=_POLL_SECONDS)
        now = time.monotonic()
        if now - self._beaten > BEAT_SECONDS:
            self._beaten = now
            self._beat()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._asked = read_stop(self._attempt)
            if read_progress(self._attempt) is not None:
                # every rank has started, and has what the hosts' shells had to read
                remove_private(self._attempt)
        self._judge()
        self._obey()
        if now > self._give_up:
            for link in self._links:
                link.drop()

    def _beat(self) -> None:
        for link in self._links:
            link.beat()
        if self._lease is not None:
            try:
                self._lease.renew()
            except OSError as problem:
                self._output.write(f"the lease of the run cannot be renewed: {problem}\n")

    def _end_lease(self) -> None:
        """Ranks that still live end by themselves, whoever else has died."""
        if self._lease is not None:
            self._lease.end()
        self._lease = None

    def _judge(self) -> None:
        """Find out whether the run has failed, on any of its hosts."""
        for link in self._links:
            if link.ended is not None:
                code, left = link.ended["exit_code"], link.ended["left"]
                if left:
                    self._fail(f"the node launcher on {link.host} has died, and left ranks {left} behind")
                elif code:
                    self._fail(f"{link.host}: {meaning(code)}")
            elif link.closed:
                self._fail(f"the agent on {link.host} has gone, or the link to it: exit code {link.process.poll()}")
            elif link.is_silent:
                self._fail(f"nothing is heard of {link.host} any more")
                link.drop()
            elif link.ready is None and time.monotonic() > self._ready_until:
                self._fail(f"no agent answers on {link.host}")
                link.drop()

    def _fail(self, reason: str) -> None:
        """The run has failed; the first reason counts, and all hosts stop."""
        if self._failure is None and self._stopped_by is None:
            self._failure = reason
        self._stop(1)

    def _obey(self) -> None:
        wanted = max(self._requests.count, {None: 0, Stop.save: 1, Stop.now: 2}[self._asked])
        if wanted == 0:
            return
        if self._failure is None and self._stopped_by is None:
            self._stopped_by = "signal" if self._requests.count else "request"
        self._stop(wanted)

    def _stop(self, times: int) -> None:
        """Ask every agent to end what it started: once, or a second time to do so at once."""
        if self._stops_sent == 0:
            self._enter(State.stopping)
            self._end_lease()
            # SIGTERM, SIGKILL, and then some time to empty the session and say so
            self._give_up = time.monotonic() + 2 * self._spec.stop_seconds + 3 * _CLOSE_SECONDS
        while self._stops_sent < min(times, 2):
            self._stops_sent += 1
            for link in self._links:
                link.stop()

    def _enter(self, state: State) -> None:
        self._record = replace(self._record, state=state)
        write_controller(self._attempt, self._record)

    def _outcome(self) -> Outcome:
        path = self._attempt / RESULT
        result = read_json(path) if path.exists() else None
        agents = tuple(_agent_outcome(link) for link in self._links)
        if self._stopped_by is not None:
            status, reason = Status.interrupted, "the run was stopped"
        elif self._failure is not None:
            status, reason = Status.failed, self._failure
        elif result is None:
            status = Status.failed
            reason = "the launcher ended with exit code 0, but the workers left no result: they were killed from outside"
        else:
            status, reason = Status.completed, "the run has ended"
        return Outcome(status=status, reason=reason, stopped_by=self._stopped_by, agents=agents, result=result)


def transport_of(spec: LaunchSpec) -> Transport:
    """How the agents of a run are started."""
    return SshTransport(ssh_settings(spec)) if spec.backend is LauncherBackend.ssh else LocalTransport()


def ssh_settings(spec: LaunchSpec) -> LauncherConfig:
    """The options of ssh that a start was made with."""
    return LauncherConfig(ssh_arguments=list(spec.ssh_arguments), connect_seconds=spec.connect_seconds)


def _agent_outcome(link: AgentLink) -> AgentOutcome:
    if link.ended is None:
        return AgentOutcome(host=link.host, exit_code=None, meaning="the host, or the link to it, was lost")
    code = int(link.ended["exit_code"])
    left = tuple(link.ended["left"])
    return AgentOutcome(host=link.host, exit_code=code, meaning="" if code == 0 else meaning(code), ranks_left=left)
