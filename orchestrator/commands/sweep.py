"""``launch -m``: a sweep, its record, and how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from orchestrator.commands import deepspeed_json
from orchestrator.commands.result import INTERRUPTED, OK, REFUSED, RUN_FAILED, CommandResult
from orchestrator.commands.sweep_places import LOCKS, settle_all
from orchestrator.commands.sweep_task import STOPPED, PointNotFinishedError, PointTask
from orchestrator.config.enums import Direction
from orchestrator.config.load import CONFIG_NAME, combine_overrides, hydra_context, quoted, shell_word
from orchestrator.config.multirun import Multirun, load_multirun
from orchestrator.control import Stop, request_stop
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.launch.locks import is_locked, locked_at_once
from orchestrator.report.sweep import sweep_report
from orchestrator.run_dir import newest_started, require_usable
from orchestrator.sweep_point import PointStatus, Sweep, SweepPoint, read_points, read_sweep

_OF_ONE_START = ("hydra.sweep.dir", "sweep.resume", "command", "output", "view")
_FAILURE_RATE = "hydra.sweeper.max_failure_rate"
_NOT_WITH_SWEEPS = {
    "run_dir": "each point has a directory of its own; say where they lie: hydra.sweep.dir=...",
    "dry_run": "orchestrator validate -m shows what the points would be",
    "checkpoint.resume": "sweep.resume=true hydra.sweep.dir=... goes on with a sweep",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSweep:
    """A sweep that may start: nothing has been written yet."""

    multirun: Multirun
    overrides: tuple[str, ...]
    """Those it was first started with, with what is given now on top; nothing of this start alone."""
    view: tuple[str, ...]
    """The words on how this start is shown."""
    config_dir: Path | None
    working_directory: str

    @property
    def sweep_dir(self) -> Path:
        """Where the sweep lies, absolute."""
        return self.multirun.sweep_dir

    @property
    def words(self) -> list[str]:
        """What Hydra is told."""
        given = self.multirun.given
        words = [*self.overrides, *self.view, f"hydra.sweep.dir={quoted(str(self.sweep_dir))}", "command=launch"]
        # a point's directory is its run's: what Hydra would leave there for a refused one tells nothing
        words += [] if "hydra.output_subdir" in given else ["hydra.output_subdir=null"]
        words += [] if "hydra/hydra_logging" in given else ["hydra/hydra_logging=disabled"]
        if self.multirun.is_optuna and self.multirun.sweeper_settings["max_failure_rate"] == 0 and _FAILURE_RATE not in given:
            # Hydra's default ends a study at the first point that fails
            words.append(f"{_FAILURE_RATE}=1.0")
        return words


def prepare(given: Sequence[str], *, config_dir: Path | None) -> PreparedSweep:
    """Check a sweep's words, the recorded ones of a sweep that goes on among them.

    Raises:
        ConfigurationError: with every problem.
    """
    overrides, directory = tuple(given), str(Path.cwd())
    recorded = None
    sweep_dir = _given(given, "hydra.sweep.dir")
    if _given(given, "sweep.resume") is True and sweep_dir is not None:
        sweep_dir = Path(str(sweep_dir)).expanduser().absolute()
        recorded = _recorded(sweep_dir)
    if recorded is not None:
        overrides = (*combine_overrides(recorded.overrides, given), f"hydra.sweep.dir={quoted(str(sweep_dir))}")
        config_dir = config_dir.absolute() if config_dir else _recorded_config_dir(recorded)
        with suppress(OSError):
            # relative paths among the recorded words begin there; who has moved it all stands where they begin now
            os.chdir(recorded.working_directory)
        directory = str(Path.cwd())
    multirun = load_multirun(overrides, config_dir=config_dir)
    recorded = recorded or _recorded(multirun.sweep_dir)
    findings = [*_word_findings(multirun), *_directory_findings(multirun, recorded), *_optuna_findings(multirun)]
    if findings:
        raise ConfigurationError(findings)
    try:
        require_usable(multirun.sweep_dir)
    except ConfigurationError as problem:
        raise ConfigurationError([replace(finding, field="hydra.sweep.dir") for finding in problem.findings]) from None
    return PreparedSweep(
        multirun=multirun,
        overrides=tuple(word for word in overrides if word.split("=")[0].lstrip("+") not in _OF_ONE_START),
        view=tuple(word for word in overrides if word.split("=")[0] == "view"),
        config_dir=config_dir,
        working_directory=directory,
    )


def run(sweep: PreparedSweep, say: Callable[[str], None]) -> CommandResult:
    """Run every point that has no result yet, and report on all.

    Raises:
        ConfigurationError: the directory cannot be made, or another sweep has taken it since this one was prepared.
    """
    multirun, sweep_dir = sweep.multirun, sweep.sweep_dir
    started = time.time()
    try:
        (sweep_dir / LOCKS).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        told = f"{sweep_dir} cannot be made: {problem.strerror}"
        fix = "choose a folder that can be written to"
        raise ConfigurationError([error("sweep-directory", "hydra.sweep.dir", told, fix)]) from None
    with locked_at_once(sweep_dir / LOCKS / "sweep") as is_alone:
        if not is_alone or (_recorded(sweep_dir) is not None and not multirun.options.resume):
            raise ConfigurationError([_holds_one(sweep_dir) if is_alone else _is_running(sweep_dir)])
        (sweep_dir / STOPPED).unlink(missing_ok=True)
        metric = multirun.options.metric
        _record(sweep, started)
        settle_all(sweep_dir, metric)
        task = PointTask(
            sweep_dir=sweep_dir,
            started=started,
            config_dir=sweep.config_dir,
            metric=metric,
            say=say,
            is_parallel=multirun.is_parallel,
            # the basic sweeper has no use for objectives, and would stop at the first that is missing
            raises=multirun.sweeper != "basic",
        )
        say(f"sweep: {sweep_dir}")
        interrupted, message = _swept(sweep, task)
        try:
            settle_all(sweep_dir, metric)
        except OSError as problem:
            # a full disk: every record is still as it was
            message = message or f"{type(problem).__name__}: {problem}"
        points = read_points(sweep_dir)
    return _report(sweep, points, interrupted=interrupted, message=message)


def _swept(sweep: PreparedSweep, task: PointTask) -> tuple[bool, str | None]:
    """Hand the sweep to Hydra; whether it was interrupted, and what else ended it before its time."""
    with hydra_context(sweep.config_dir), _interruptible(sweep):
        if sweep.multirun.is_optuna:
            from orchestrator.commands import sweep_optuna

            sweep_optuna.install()
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        try:
            hydra.multirun(CONFIG_NAME, task, sweep.words)
        except KeyboardInterrupt:
            return True, None
        except PointNotFinishedError as problem:
            return (sweep.sweep_dir / STOPPED).exists(), f"the sweeper has ended the sweep: {problem}"
        except Exception as problem:  # of plugins: whatever they raise ends the sweep, never its records
            return (sweep.sweep_dir / STOPPED).exists(), f"{type(problem).__name__}: {problem}"
    return (sweep.sweep_dir / STOPPED).exists(), None


@contextmanager
def _interruptible(sweep: PreparedSweep) -> Iterator[None]:
    """SIGINT and SIGTERM end the sweep. Points in other processes are asked to stop, as their runs can save then."""
    signals = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if not sweep.multirun.is_parallel or signals > 2:
            raise KeyboardInterrupt
        (sweep.sweep_dir / STOPPED).touch()
        for directory, point in read_points(sweep.sweep_dir).items():
            attempt = newest_started(directory)
            if point.status is PointStatus.running and attempt is not None:
                request_stop(attempt.path, Stop.save if signals == 1 else Stop.now)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(
    sweep: PreparedSweep, points: Mapping[Path, SweepPoint], *, interrupted: bool, message: str | None
) -> CommandResult:
    statuses = {point.status for point in points.values()}
    # a sweep that has ended before its time with points has not been refused
    failed = bool({PointStatus.failed, PointStatus.interrupted} & statuses or (message and points))
    code = INTERRUPTED if interrupted else RUN_FAILED if failed else REFUSED if message else OK
    direction = sweep.multirun.options.direction
    best = _best(list(points.values()), direction)
    payload: dict[str, Any] = {
        "status": {INTERRUPTED: "interrupted", RUN_FAILED: "failed", REFUSED: "refused", OK: "completed"}[code],
        "sweep_dir": str(sweep.sweep_dir),
        "message": message,
        "metric": None if best is None else best.metric_name,
        "direction": direction.value,
        "best": None if best is None else best.number,
        "counts": {status.value: sum(point.status is status for point in points.values()) for status in PointStatus},
        "points": [{**asdict(point), "directory": str(directory)} for directory, point in points.items()],
    }
    parts = sweep_report(sweep.sweep_dir, points, best, direction.value)
    parts += [message] if message else []
    if code in (INTERRUPTED, RUN_FAILED):
        parts.append(f"to go on: orchestrator launch -m sweep.resume=true {shell_word('hydra.sweep.dir', sweep.sweep_dir)}")
    return CommandResult(exit_code=code, payload=payload, text=parts)


def _best(points: Sequence[SweepPoint], direction: Direction) -> SweepPoint | None:
    measured = [point for point in points if point.metric is not None]
    sign = 1.0 if direction is Direction.minimize else -1.0
    return min(measured, key=lambda point: sign * (point.metric or 0.0), default=None)


def _given(words: Sequence[str], key: str) -> Any:
    """The value that the last word on an option gives it; None without one."""
    named = [word for word in words if word.split("=", 1)[0] == key]
    try:
        return OverridesParser.create().parse_override(named[-1]).value() if named else None
    except (HydraException, OmegaConfBaseException):
        # composing says what is wrong with it
        return None


def _record(sweep: PreparedSweep, created: float) -> None:
    earlier = read_sweep(sweep.sweep_dir)
    options = sweep.multirun.options
    Sweep(
        overrides=sweep.overrides,
        metric=options.metric,
        direction=options.direction.value,
        created=created if earlier is None else earlier.created,
        working_directory=sweep.working_directory,
        config_dir=None if sweep.config_dir is None else str(sweep.config_dir.absolute()),
    ).write(sweep.sweep_dir)


def _recorded(sweep_dir: Path) -> Sweep | None:
    try:
        read_points(sweep_dir)
        return read_sweep(sweep_dir)
    except ValueError as problem:
        finding = error("sweep-directory", "hydra.sweep.dir", str(problem), "restore the file, or start another sweep")
        raise ConfigurationError([finding]) from None


def _recorded_config_dir(recorded: Sweep) -> Path | None:
    folder = None if recorded.config_dir is None else Path(recorded.config_dir)
    if folder is not None and not folder.is_dir():
        message = f"the sweep was started with {folder}, which is no longer there"
        raise ConfigurationError([error("config-dir", "--config-dir", message, "say where it is: --config-dir DIR")])
    return folder


def _word_findings(multirun: Multirun) -> Iterator[Finding]:
    if "deepspeed_json" in multirun.given:
        yield deepspeed_json.not_launched()
    for field, fix in _NOT_WITH_SWEEPS.items():
        if field in multirun.given:
            yield error("sweep-option", field, "it is an option of one run, and -m makes many", fix)
    if multirun.sweeper == "basic":
        for override in multirun.words:
            if override.is_interval_sweep():
                fix = "give values (a list, or range(...)), or let Optuna choose them: sweep=optuna"
                yield error("sweep-interval", override.key_or_group, f"{override.input_line!r} has no end of values", fix)


def _directory_findings(multirun: Multirun, recorded: Sweep | None) -> Iterator[Finding]:
    if is_locked(multirun.sweep_dir / LOCKS / "sweep"):
        yield _is_running(multirun.sweep_dir)
    elif multirun.options.resume and recorded is None:
        message = f"{multirun.sweep_dir} holds no sweep to go on with"
        fix = "name the directory of the sweep, or leave sweep.resume out"
        yield error("sweep-directory", "hydra.sweep.dir", message, fix)
    elif recorded is not None and not multirun.options.resume:
        yield _holds_one(multirun.sweep_dir)


def _is_running(sweep_dir: Path) -> Finding:
    message = f"a sweep is running in {sweep_dir}"
    return error("sweep-directory", "hydra.sweep.dir", message, "wait for it, stop it, or choose another directory")


def _holds_one(sweep_dir: Path) -> Finding:
    fix = "go on with it: sweep.resume=true, or choose another directory"
    return error("sweep-directory", "hydra.sweep.dir", f"{sweep_dir} already holds a sweep", fix)


def _optuna_findings(multirun: Multirun) -> Iterator[Finding]:
    if not multirun.is_optuna:
        return
    settings = multirun.sweeper_settings
    chosen = settings["direction"]
    names = [str(getattr(name, "name", name)) for name in (chosen if isinstance(chosen, list) else [chosen])]
    if names != [multirun.options.direction.value]:
        message = f"Optuna is to {' and '.join(names)}, and sweep.direction is {multirun.options.direction.value}"
        fix = "set both to the same; a sweep has one objective"
        yield error("sweep-direction", "hydra.sweeper.direction", message, fix)
    if isinstance(settings["storage"], str) and int(metadata.version("sqlalchemy").split(".")[0]) >= 2:
        message = f"the Optuna that Hydra's sweeper takes cannot use SQLAlchemy {metadata.version('sqlalchemy')}"
        yield error("sweep-storage", "hydra.sweeper.storage", message, "pip install 'sqlalchemy<2'")
    if settings["storage"] is not None and settings["study_name"] is None:
        message = "a stored study without a name is a new one at every start"
        yield error("sweep-storage", "hydra.sweeper.study_name", message, "hydra.sweeper.study_name=NAME")
    if multirun.options.resume and settings["storage"] is None and settings["sampler"].get("seed") is None:
        message = "the study was in memory and is gone, and without a seed other points are drawn"
        fix = "start another sweep, with hydra.sweeper.storage or hydra.sweeper.sampler.seed set (sweep=optuna has both)"
        yield error("sweep-storage", "hydra.sweeper.storage", message, fix)
