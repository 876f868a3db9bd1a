"""One point of a sweep, as Hydra's launchers run it: in this process, in others of this machine, or as jobs elsewhere.

It goes through the same preparation and start as a single launch. Whatever happens to it is in its record; nothing that it
raises ends the sweep but an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from orchestrator.checkpoints.catalogue import newest
from orchestrator.commands import deepspeed_json, launch, plan
from orchestrator.commands.paths import with_absolute_paths
from orchestrator.commands.point_devices import point_devices
from orchestrator.commands.result import INTERRUPTED, OK, REFUSED, RUN_FAILED, CommandResult
from orchestrator.commands.sweep_places import LOCKS, lock_of, place_of, reason_of, settled, with_objective
from orchestrator.config.enums import View
from orchestrator.config.load import config_from_composed, resolve
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity
from orchestrator.launch.locks import locked
from orchestrator.report.view import is_unusual
from orchestrator.run_dir import checkpoint_dir, write_json
from orchestrator.sweep_point import POINT_CONFIG, PointStatus, SweepPoint, config_hash

STOPPED = ".stopped"
"""In a sweep's directory: it was interrupted, and no further point starts."""
_HANDED_OVER = ("detached", "submitted")
"""A controller or a Slurm job elsewhere has the run, which goes on."""
_OF_NO_POINT = ("command", "output", "view", "sweep.resume")


class PointNotFinishedError(Exception):
    """A point has no objective. Sweepers that choose points by it learn of that as an exception."""

    def __init__(self, status: str, reason: str, directory: str) -> None:
        super().__init__(status, reason, directory)
        self.status, self.reason, self.directory = status, reason, directory

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTask:
    """What Hydra calls with the configuration of each point; gives the point's objective. Other processes get a copy."""

    sweep_dir: Path
    """Absolute."""
    started: float
    """When this start of the sweep began; what has failed before is run again."""
    config_dir: Path | None
    metric: str | None
    """The option ``sweep.metric``."""
    say: Callable[[str], None]
    """Tells people one line."""
    is_parallel: bool
    """Whether others run at the same time, which an interruption of this one must not end."""
    raises: bool
    """Whether the sweeper wants to hear of points without an objective."""

    def __call__(self, composed: DictConfig) -> float | None:
        """Run the point unless it is known already.

        Raises:
            PointNotFinishedError: it has no objective, and ``raises``.
            KeyboardInterrupt: it was interrupted, in the process of the sweep itself.
        """
        if (self.sweep_dir / STOPPED).exists():
            return self._without_objective("interrupted", "the sweep was interrupted before it started", "")
        directory, point = self._point(composed)
        if point.status is PointStatus.interrupted and not self.is_parallel:
            # not an Exception to Hydra, which would go on with the next point
            raise KeyboardInterrupt
        if point.status is PointStatus.finished:
            return point.metric
        return self._without_objective(point.status.value, point.reason or "it goes on elsewhere", str(directory))

    def _without_objective(self, status: str, reason: str, directory: str) -> float | None:
        if self.raises:
            raise PointNotFinishedError(status, reason, directory)
        return None

    def _point(self, composed: DictConfig) -> tuple[Path, SweepPoint]:
        """The directory of the point and its record, ended."""
        hydra = HydraConfig.get()
        reserved = Path(hydra.runtime.output_dir)
        overrides = tuple(word for word in hydra.overrides.task if word.split("=")[0] not in _OF_NO_POINT)
        config, refusal = _configuration(composed)
        values = resolve(composed)[0] if config is None else asdict(with_absolute_paths(config))
        # paths as they were given: a project that was moved still has its points
        identity = config_hash(values if config is None else asdict(config))
        with locked(lock_of(self.sweep_dir, identity)):
            with locked(self.sweep_dir / LOCKS / "places"):
                directory, number, earlier = place_of(self.sweep_dir, identity, hydra.job.num, reserved)
                record = SweepPoint(
                    number=number,
                    overrides=overrides,
                    config_hash=identity,
                    status=PointStatus.running,
                    started=time.time(),
                )
                known = None if earlier is None else settled(directory, earlier, self.metric)
                if known is None or self._runs_again(known):
                    known = None
                    record.write(directory)
                    write_json(directory / POINT_CONFIG, values)
            if directory != reserved:
                with suppress(OSError):
                    # Hydra has made it, and nothing came into it
                    reserved.rmdir()
            if known is None:
                known = self._run(directory, record, config, refusal)
            else:
                self.say(f"point {number}: {_told(known)} already")
            known.write(directory)
            return directory, known

    def _runs_again(self, point: SweepPoint) -> bool:
        """Whether an earlier start left the point without a result. What fails twice in one start is not tried twice."""
        if point.status is PointStatus.failed:
            return point.exit_code != OK and (point.ended or 0.0) < self.started
        return point.status is PointStatus.interrupted

    def _run(self, directory: Path, record: SweepPoint, config: RunConfig | None, refusal: str) -> SweepPoint:
        words = " ".join(record.overrides)
        self.say(f"point {record.number}: {words}  ({directory})")
        try:
            ended = self._ended(directory, record, config, refusal)
        except KeyboardInterrupt:
            ended = _end(record, PointStatus.interrupted, "it was interrupted", INTERRUPTED)
        except Exception as problem:
            ended = _end(record, PointStatus.failed, f"{type(problem).__name__}: {problem}", RUN_FAILED)
        self.say(f"point {record.number}: {_told(ended)}")
        return ended

    def _ended(self, directory: Path, record: SweepPoint, config: RunConfig | None, refusal: str) -> SweepPoint:
        """Prepare and start the point's run as a single launch does, and follow it."""
        if config is None:
            return _end(record, PointStatus.infeasible, refusal, REFUSED)
        config = replace(config, run_dir=str(directory))
        try:
            words = list(record.overrides)
            if config.parallelism.auto:
                config, entry = plan.with_choice(config)
                words += entry.overrides
        except ConfigurationError as problem:
            return _end(record, PointStatus.infeasible, _reason(problem.findings), REFUSED)

        def waiting() -> None:
            self.say(f"point {record.number}: waiting for devices that other points hold")

        try:
            with point_devices(config, self.sweep_dir, waiting=waiting) as config:
                if (self.sweep_dir / STOPPED).exists():
                    raise KeyboardInterrupt
                result = self._launched(config, words, record.number)
        except ConfigurationError as problem:
            return _end(record, PointStatus.failed, _reason(problem.findings), REFUSED)
        if result.exit_code == REFUSED:
            return _end(record, PointStatus.infeasible, _payload_reason(result), REFUSED)
        if result.exit_code == INTERRUPTED:
            return _end(record, PointStatus.interrupted, _payload_reason(result), INTERRUPTED)
        if result.exit_code != OK:
            return _end(record, PointStatus.failed, _payload_reason(result), result.exit_code)
        if result.payload.get("status") in _HANDED_OVER:
            return record
        return with_objective(replace(record, exit_code=OK, ended=time.time()), directory, self.metric)

    def _launched(self, config: RunConfig, words: list[str], number: int) -> CommandResult:
        directory = Path(config.run_dir)
        again = (directory / "request" / "run.json").exists()
        resumes = again and newest(checkpoint_dir(directory)) is not None
        if resumes:
            config = replace(config, checkpoint=replace(config.checkpoint, resume=True))
        recorded = launch.command_words(config, words, self.config_dir)
        prepared = launch.prepare(config, recorded, starts_over=again and not resumes)
        if isinstance(prepared, CommandResult):
            return prepared

        def echo(line: str) -> None:
            if config.view is not View.quiet or is_unusual(line):
                self.say(f"point {number}: {line}")

        return launch.start(prepared, echo, lambda _parts: None)


def _configuration(composed: DictConfig) -> tuple[RunConfig | None, str]:
    """The configuration of a point, or why it has none."""
    try:
        config = config_from_composed(composed)
        deepspeed_json.unsupported(config)
        launch.require_attached(config)
    except ConfigurationError as problem:
        return None, _reason(problem.findings)
    return config, ""


def _end(record: SweepPoint, status: PointStatus, reason: str, exit_code: int) -> SweepPoint:
    return replace(record, status=status, reason=reason, exit_code=exit_code, ended=time.time())


def _reason(findings: tuple[Finding, ...]) -> str:
    return "; ".join(f"{finding.field}: {finding.message}" for finding in findings if finding.severity is Severity.error)


def _payload_reason(result: CommandResult) -> str:
    """Why a run was refused or has failed, as its JSON says it."""
    if "reason" in result.payload:
        return reason_of(result.payload)
    entries = [*result.payload.get("findings", ())]
    for host in result.payload.get("hosts", {}).values():
        entries += host.get("findings", ())
    reasons = [f"{entry['field']}: {entry['message']}" for entry in entries if entry["severity"] == Severity.error.value]
    return "; ".join(dict.fromkeys(reasons)) or str(result.payload.get("verdict") or result.payload.get("status"))


def _told(point: SweepPoint) -> str:
    if point.status is PointStatus.finished:
        return f"finished, {point.metric_name} {point.metric:.6g}"
    return point.status.value if point.reason is None else f"{point.status.value}: {point.reason}"
