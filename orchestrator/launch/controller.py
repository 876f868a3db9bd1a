"""The controller of an attempt: an agent on every host, the lease of the ranks, and the decision that the run is over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.config.enums import LauncherBackend
from orchestrator.control import OUTCOME, ControllerRecord, State, Stop, read_stop, write_controller
from orchestrator.launch.agents import CLOSE_SECONDS, Agents
from orchestrator.launch.ending.hang import ProgressWatch, hung
from orchestrator.launch.ending.outcome import Outcome, outcome_of
from orchestrator.launch.ending.stacks import await_stacks
from orchestrator.launch.ending.status import Ending, Status, StoppedBy
from orchestrator.launch.pdsh import remove_private
from orchestrator.launch.processes import PROGRESS, Output, StopRequests, open_log
from orchestrator.launch.slurm.transport import SrunTransport
from orchestrator.launch.spec import LaunchSpec
from orchestrator.launch.transport import LocalTransport, SshTransport, Transport
from orchestrator.lease import LEASE, RENEW_SECONDS, Lease, LeaseWatch, Request
from orchestrator.presence import read_ranks
from orchestrator.run_dir import LOG, write_json
from orchestrator.units import format_seconds

SAVE_SECONDS = 600.0
"""So long ranks that were asked to save may show no progress."""
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_STACK_SECONDS = 3 * RENEW_SECONDS
_SEE_SECONDS = 2 * RENEW_SECONDS
"""In which ranks that no agent ends see that their lease is over."""


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
        self._requests = StopRequests()
        self._progress = ProgressWatch(attempt)
        self._ending: Ending | None = None
        self._has_started = False
        self._stops_sent = 0
        self._asked_to_save = float("inf")
        self._stacks_until: float | None = None
        self._give_up = float("inf")
        self._renewed = self._looked = float("-inf")
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
        with open_log(self._attempt / LOG) as log, self._requests.listening():
            self._output = Output(log, self._echo)
            self._end_earlier_attempts()
            self._lease = Lease(self._attempt)
            self._agents = Agents(self._spec, self._transport, private=self._private, output=self._output)
            try:
                with self._agents.kept_alive():
                    self._run()
            finally:
                self._try(self._lease.end)
                self._agents.close(self._attempt)
            self._clean_up()
            outcome = outcome_of(self._attempt, self._agents.links, self._ending)
            # who follows the log on another host stops reading when the outcome is there
            self._try(partial(os.fsync, log.fileno()))
            self._try(partial(write_json, self._attempt / OUTCOME, outcome.to_dict()))
            self._enter(State.ended)
            self._output.close()
        return outcome

    def _end_earlier_attempts(self) -> None:
        """A controller that was killed may have left ranks that would write into the checkpoints of this attempt."""
        others = [path.parent for path in self._attempt.parent.glob(f"*/{LEASE}") if path.parent != self._attempt]
        standing = [other for other in others if LeaseWatch(other).look().reason is None]
        for other in standing:
            self._try(partial(_end_lease, other))
        if standing:
            time.sleep(_SEE_SECONDS)

    def _run(self) -> None:
        try:
            self._agents.connect()
        except OSError as problem:
            self._end(Ending(status=Status.failed, reason=f"the hosts cannot be reached: {problem}"))
        while self._ending is None and not self._agents.are_ready:
            self._tick()
        if self._ending is None:
            self._has_started = True
            self._enter(State.running)
            self._agents.start(self._attempt)
        while not self._agents.are_over:
            self._tick()
        self._judge()
        if self._ending is None and self._record.state is State.saving:
            self._ending = self._interrupted()

    def _tick(self) -> None:
        """One turn: hear the agents, keep the lease, look whether anything has to end."""
        self._agents.wait(_POLL_SECONDS)
        now = time.monotonic()
        if now - self._renewed > RENEW_SECONDS:
            self._renewed = now
            self._try(self._lease.renew)
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._look()
        self._judge()
        self._obey()
        if now > self._give_up:
            self._agents.drop()

    def _look(self) -> None:
        """Look at what others have left in the attempt."""
        self._asked = read_stop(self._attempt)
        self._progress.look()
        if self._spec.backend is LauncherBackend.pdsh and self._progress.all_have_started:
            self._try(partial(remove_private, self._attempt))
        silent = self._progress.silent_seconds
        if self._record.state is State.saving and min(silent, time.monotonic() - self._asked_to_save) > SAVE_SECONDS:
            self._say(f"no progress for {format_seconds(silent)}: the run ends without having saved")
            self._end(self._interrupted())
        elif self._record.state is State.running and 0 < self._spec.hang_timeout < silent:
            self._look_where_it_hangs(silent)
        elif self._record.state is State.running and self._stacks_until is not None:
            self._say("it gets on again")
            self._stacks_until = None
            self._try(partial(self._lease.ask, Request.go_on))

    def _look_where_it_hangs(self, silent: float) -> None:
        """Ask every rank for its stack, and end the run when all have answered or had their time."""
        if self._stacks_until is None:
            self._try(partial(await_stacks, self._attempt, [record.rank for record in read_ranks(self._attempt)]))
            self._say(f"no progress for {format_seconds(silent)}: asking every rank where it stands")
            self._stacks_until = time.monotonic() + _STACK_SECONDS
            self._try(partial(self._lease.ask, Request.dump_stacks))
        ending = hung(self._attempt, self._progress, may_wait=time.monotonic() < self._stacks_until)
        if ending is not None:
            self._end(ending)

    def _judge(self) -> None:
        """Find out whether the run has failed, on any of its hosts."""
        for failure in self._agents.failures():
            self._end(failure)
        if (fault := self._output.fault) is not None:
            self._end(Ending(status=Status.failed, reason=f"what the run says cannot be shown, a bug: {fault!r}"))

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
            self._asked_to_save = time.monotonic()
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

    def _end(self, ending: Ending, *, times: int = 1) -> None:
        """End the run; of several reasons the first counts."""
        self._ending = self._ending or ending
        if self._stops_sent == 0:
            self._enter(State.stopping)
            self._try(self._lease.end)
            # SIGTERM, SIGKILL, and then some time to empty the session and say so
            self._give_up = time.monotonic() + 2 * self._spec.stop_seconds + 3 * CLOSE_SECONDS
        while self._stops_sent < min(times, 2):
            self._stops_sent += 1
            self._agents.stop()

    def _clean_up(self) -> None:
        """What agents could not do: ranks that they did not start or reach, and the disks of hosts without one."""
        if self._has_started and self._ending is not None and not self._agents.saw_everything_end:
            time.sleep(_SEE_SECONDS)
        self._try(self._agents.clean_hosts)

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


def _end_lease(attempt: Path) -> None:
    Lease(attempt).end()


def transport_of(spec: LaunchSpec) -> Transport:
    """How the agents of a run are started."""
    if spec.backend is LauncherBackend.ssh:
        return SshTransport(spec.ssh_settings)
    if spec.backend is LauncherBackend.slurm:
        return SrunTransport()
    return LocalTransport()
