"""The controller of an attempt: an agent on every host, the lease of the ranks, and the decision that the run is over."""

from __future__ import annotations

import contextlib
import os
import queue
import re
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
from orchestrator.launch.ending import Ending, Status, StoppedBy
from orchestrator.launch.hang import ProgressWatch
from orchestrator.launch.outcome import Outcome, outcome_of
from orchestrator.launch.pdsh import remove_private, without, write_private
from orchestrator.launch.processes import PROGRESS, Output, StopRequests, meaning
from orchestrator.launch.protocol import BEAT_SECONDS, StartOrder
from orchestrator.launch.remote import UNREACHABLE
from orchestrator.launch.slurm_transport import SrunTransport
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.stacks import describe, ranks_with_stacks, stack_groups
from orchestrator.launch.transport import LocalTransport, SshTransport, Transport, is_this_machine, python_command
from orchestrator.lease import LEASE, RENEW_SECONDS, Lease, LeaseWatch, Request
from orchestrator.presence import read_ranks
from orchestrator.run_dir import LOG, SWAP_OWNER, write_json
from orchestrator.units import format_seconds

SAVE_SECONDS = 600.0
"""So long ranks that were asked to save may show no progress."""
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_READY_SECONDS = 60.0
"""For Python to start on a host that was reached."""
_CLOSE_SECONDS = 5.0
_STACK_SECONDS = 3 * RENEW_SECONDS
_SEE_SECONDS = 2 * RENEW_SECONDS
"""In which ranks that no agent ends see that their lease is over."""
_PDSH_FAILURE = re.compile(r"^pdsh@\S+: (\S+): .*exit code (\d+)")


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
        self._requests = StopRequests()
        self._progress = ProgressWatch(attempt)
        self._ending: Ending | None = None
        self._has_started = False
        self._stops_sent = 0
        self._pdsh_failure: tuple[str, int] | None = None
        self._stacks_until: float | None = None
        self._ready_until = self._give_up = float("inf")
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
        write_controller(attempt, self._record)

    def run(self) -> Outcome:
        """Start, follow and end the attempt; nothing of it is left when this returns.

        Everything printed goes to the attempt's log, progress lines to ``echo`` as well. A signal (SIGINT, SIGTERM, SIGHUP)
        or a stop request in the attempt end the run, after a checkpoint if it is to save; a second one ends it at once.
        SIGUSR1 says that a time limit is near.
        """
        with (self._attempt / LOG).open("w", encoding="utf-8", buffering=1) as log, self._requests.listening():
            self._output = Output(log, self._echo)
            self._end_earlier_attempts()
            self._lease = Lease(self._attempt)
            try:
                self._run()
            finally:
                self._try(self._lease.end)
                remove_private(self._attempt)
                for link in self._links:
                    link.close(_CLOSE_SECONDS)
            self._clean_up()
            outcome = outcome_of(self._attempt, self._links, self._ending)
            self._try(partial(write_json, self._attempt / OUTCOME, outcome.to_dict()))
            self._enter(State.ended)
        return outcome

    def _end_earlier_attempts(self) -> None:
        """A controller that was killed may have left ranks that would write into the checkpoints of this attempt."""
        others = [path.parent for path in self._attempt.parent.glob(f"*/{LEASE}") if path.parent != self._attempt]
        standing = [other for other in others if LeaseWatch(other).look().reason is None]
        for other in standing:
            Lease(other).end()
        if standing:
            time.sleep(_SEE_SECONDS)

    def _run(self) -> None:
        self._connect()
        while self._ending is None and not all(link.ready for link in self._links):
            self._tick()
        if self._ending is None:
            self._start()
        while not all(link.is_over for link in self._links):
            self._tick()
        self._judge()
        if self._ending is None and self._record.state is State.saving:
            self._ending = self._interrupted()

    def _connect(self) -> None:
        """Start an agent on every host; none starts anything before all are there."""
        self._ready_until = time.monotonic() + self._spec.connect_seconds + _READY_SECONDS
        for host in self._spec.agent_hosts:
            self._links += self._agent_on(host, self._transport)
        first = self._spec.hosts[0]
        if self._over_pdsh and self._spec.master_port is None and not is_this_machine(first):
            # this one only says which port is free there
            self._links += self._agent_on(first, SshTransport(ssh_settings(self._spec)))

    def _agent_on(self, host: str, transport: Transport) -> list[AgentLink]:
        try:
            process = transport.start(host, python_command("orchestrator.launch.agent"))
        except OSError as problem:
            self._fail(f"{host} cannot be reached: {problem}", host)
            return []
        prefix = f"{host}: " if len(self._spec.agent_hosts) > 1 else ""
        output = partial(self._take, prefix)
        return [AgentLink(node_rank=len(self._links), host=host, process=process, events=self._events, output=output)]

    def _take(self, prefix: str, line: str) -> None:
        """A line that a host has printed; on the thread that reads it."""
        self._output.write(prefix + line)
        if self._over_pdsh and self._pdsh_failure is None and (failed := _PDSH_FAILURE.match(line)):
            self._pdsh_failure = failed[1], int(failed[2])

    @property
    def _over_pdsh(self) -> bool:
        return self._spec.backend is LauncherBackend.pdsh

    def _start(self) -> None:
        """Have the launcher started on every host, with a port that is free on the first."""
        scouts = self._links[len(self._spec.agent_hosts) :]
        first = (scouts or self._links)[0].ready
        assert first is not None
        port = self._spec.master_port or int(first["port"])
        for scout in scouts:
            scout.close(_CLOSE_SECONDS)
            self._links.remove(scout)
        if self._over_pdsh:
            write_private(self._attempt, self._private)
        self._has_started = True
        self._enter(State.running)
        for link in self._links:
            link.start(self._order(self._spec.argv(link.node_rank, port)))

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

    def _tick(self) -> None:
        """One turn: hear the agents, keep the leases, look whether anything has to end."""
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=_POLL_SECONDS)
            while True:
                self._events.get_nowait()
        now = time.monotonic()
        if now - self._beaten > BEAT_SECONDS:
            self._beaten = now
            self._beat()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._look()
        self._judge()
        self._obey()
        if now > self._give_up:
            for link in self._links:
                link.drop()

    def _beat(self) -> None:
        for link in self._links:
            link.beat()
        self._try(self._lease.renew)

    def _look(self) -> None:
        """Look at what others have left in the attempt."""
        self._asked = read_stop(self._attempt)
        self._progress.look()
        if self._progress.seen is not None:
            # every rank has started, and has what the hosts' shells had to read
            remove_private(self._attempt)
        silent = self._progress.silent_seconds
        if self._record.state is State.saving and silent > SAVE_SECONDS:
            self._say(f"no progress for {format_seconds(silent)}: the run ends without having saved")
            self._end(self._interrupted())
        elif self._record.state is State.running and 0 < self._spec.hang_timeout < silent:
            self._look_where_it_hangs(silent)

    def _look_where_it_hangs(self, silent: float) -> None:
        """Ask every rank for its stack, and end the run when all have answered or had their time."""
        if self._stacks_until is None:
            self._say(f"no progress for {format_seconds(silent)}: asking every rank where it stands")
            self._stacks_until = time.monotonic() + _STACK_SECONDS
            self._try(partial(self._lease.ask, Request.dump_stacks))
        missing = {record.rank for record in read_ranks(self._attempt)} - ranks_with_stacks(self._attempt)
        if missing and time.monotonic() < self._stacks_until:
            return
        groups = tuple(stack_groups(self._attempt))
        reason = f"the run hangs {self._progress.place}: no progress for {format_seconds(silent)}"
        if missing:
            reason += f"; no stack of rank {', '.join(map(str, sorted(missing)))}, which may be stopped or waiting for a disk"
        if groups:
            reason += f"; {describe(groups[:1])}"
        self._end(Ending(status=Status.hung, reason=reason, stacks=groups))

    def _judge(self) -> None:
        """Find out whether the run has failed, on any of its hosts."""
        for link in self._links:
            if link.exit_code is not None:
                if link.ranks_left and link.exit_code <= 0:
                    left = ", ".join(map(str, link.ranks_left))
                    self._fail(f"the node launcher on {link.host} has died, and left rank {left} behind", link.host)
                elif link.exit_code:
                    self._fail(f"{link.host}: {meaning(link.exit_code)}", link.host, is_explained=False)
            elif link.closed:
                self._fail(_lost(link), link.host)
            elif link.is_silent:
                self._fail(f"nothing is heard of {link.host} any more: the host, or the link to it, was lost", link.host)
                link.drop()
            elif link.ready is None and time.monotonic() > self._ready_until:
                self._fail(f"no agent answers on {link.host}", link.host)
                link.drop()
        if self._pdsh_failure is not None:
            host, code = self._pdsh_failure
            if code == UNREACHABLE:
                self._fail(f"the node launcher on {host} was killed, or the link to its host was lost", host)
            else:
                self._fail(f"{host}: {meaning(code)}", host, is_explained=False)

    def _obey(self) -> None:
        """Do what was asked: save and stop, or stop at once."""
        wanted = max(self._requests.count, {None: 0, Stop.save: 1, Stop.now: 2}[self._asked])
        wanted = max(wanted, int(self._requests.time_limit_is_near))
        if wanted == 0 or (wanted == 1 and self._record.state is State.saving):
            return
        self._progress.look()
        can_save = self._spec.save_on_stop and self._progress.has_begun_training and self._record.state is State.running
        # Slurm sends SIGTERM to every process of a job: the ranks end, and cannot save
        strikes_all = self._spec.backend is LauncherBackend.slurm and self._requests.terminated
        if wanted == 1 and can_save and not strikes_all:
            self._say(
                "stopping: the ranks save after the step in hand, and may take their time while they get on "
                f"(no progress for {format_seconds(SAVE_SECONDS)} ends it); stop once more to end it now"
            )
            self._enter(State.saving)
            self._try(partial(self._lease.ask, Request.save_and_stop))
            return
        self._end(self._interrupted(), times=wanted)

    def _interrupted(self) -> Ending:
        who = StoppedBy.signal if self._requests.count else StoppedBy.request if self._asked else StoppedBy.time_limit
        reason = {
            StoppedBy.signal: "it was interrupted",
            StoppedBy.request: "it was asked to stop",
            StoppedBy.time_limit: "its time limit is near",
        }[who]
        return Ending(status=Status.interrupted, reason=reason, stopped_by=who)

    def _fail(self, reason: str, host: str, *, is_explained: bool = True) -> None:
        self._end(Ending(status=Status.failed, reason=reason, host=host, is_explained=is_explained))

    def _end(self, ending: Ending, *, times: int = 1) -> None:
        """End the run; of several reasons the first counts."""
        self._ending = self._ending or ending
        self._stop(times)

    def _stop(self, times: int) -> None:
        """Ask every agent to end what it started: once, or a second time to do so at once."""
        if self._stops_sent == 0:
            self._enter(State.stopping)
            self._try(self._lease.end)
            # SIGTERM, SIGKILL, and then some time to empty the session and say so
            self._give_up = time.monotonic() + 2 * self._spec.stop_seconds + 3 * _CLOSE_SECONDS
        while self._stops_sent < min(times, 2):
            self._stops_sent += 1
            for link in self._links:
                link.stop()

    def _clean_up(self) -> None:
        """What agents could not do: ranks that they did not start or reach, and the disks of hosts without one."""
        unseen = self._over_pdsh or not all(link.ended for link in self._links)
        if self._has_started and unseen and self._ending is not None:
            time.sleep(_SEE_SECONDS)
        if not self._over_pdsh or self._spec.swap_directory is None:
            return
        cleaners = [link for host in self._spec.hosts for link in self._agent_on(host, SshTransport(ssh_settings(self._spec)))]
        for link in cleaners:
            link.start(self._order(()))
        for link in cleaners:
            link.close(self._spec.connect_seconds + _READY_SECONDS)

    def _say(self, line: str) -> None:
        self._output.write(f"{PROGRESS}{line}\n")

    def _enter(self, state: State) -> None:
        self._record = replace(self._record, state=state)
        self._try(partial(write_controller, self._attempt, self._record))

    def _try(self, action: Callable[[], object]) -> None:
        """A disk that cannot be written to must not keep the controller from ending what it has started."""
        try:
            action()
        except OSError as problem:
            self._output.write(f"{self._attempt}: {problem}\n")


def transport_of(spec: LaunchSpec) -> Transport:
    """How the agents of a run are started."""
    if spec.backend is LauncherBackend.slurm:
        return SrunTransport()
    return SshTransport(ssh_settings(spec)) if spec.backend is LauncherBackend.ssh else LocalTransport()


def ssh_settings(spec: LaunchSpec) -> LauncherConfig:
    """The options of ssh that a start was made with."""
    return LauncherConfig(ssh_arguments=list(spec.ssh_arguments), connect_seconds=spec.connect_seconds)


def _lost(link: AgentLink) -> str:
    code = link.process.poll()
    if link.ready is None:
        return f"{link.host} cannot be reached, or starts no agent (exit code {code})"
    if code == UNREACHABLE:
        return f"the agent on {link.host} has gone: it was killed, or the link to its host was lost"
    return f"the agent on {link.host} has gone (exit code {code})"
