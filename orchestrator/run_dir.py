"""The directory of a run: what was asked for, every attempt at it, and where its checkpoints are.

::

    RUN_DIR/
      request/            written once, never changed: config.json plan.json ds_config.json model.json run.json
                          script.json (training.script: its path, hash and arguments; in every attempt as well)
      attempts/1/         what this start really used: config.json plan.json ds_config.json model.json attempt.json
                          hostfile command.sh command.json; while it runs: lease (lease.py), controller.json stop
                          (control.py), ranks/ progress stacks/ (presence.py); what it left: launcher.log
                          metrics.jsonl wandb/ wandb.json recorder.log failure_rank_*.json result.json outcome.json
                          memory/ (what each rank of a script took)
      checkpoints/        one folder a checkpoint
      output/             what a training script of the user's own writes
      job.sbatch slurm.json slurm-N.out    launcher=slurm: the job, its number, and what it printed
      hydra/              Hydra's own record of the composition
      .lock               held while a launch of this run is alive

Files appear whole or not at all. Secrets never go here.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error

ATTEMPT = "attempt.json"
"""The last of the files that an attempt is started with."""
RESULT = "result.json"
SWAP_OWNER = "owner.json"
"""In the run's directory on an NVMe disk: whose it is."""
METRICS = "metrics.jsonl"
SCRIPT = "script.json"
SCRIPT_OUTPUT = "output"
WANDB = "wandb.json"
"""Where W&B has an attempt: mode, directory, id, url, and whether it is uploaded."""
LOG = "launcher.log"
COLLECTIVE = "collective.json"
"""What the ranks of a preflight are to reduce (``orchestrator/worker/collective.py``)."""
COMMAND = "command.json"
"""How the attempt is started (``orchestrator/launch/spec.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWords:
    """The overrides a run was started with, and the folder of the user's own configuration, absolute."""

    overrides: tuple[str, ...] = ()
    config_dir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContents:
    """What a start of a run is made of, all decided before anything is written."""

    config: RunConfig
    plan: Mapping[str, Any]
    ds_config: Mapping[str, Any]
    model: Mapping[str, Any]
    """Name, complete Hugging Face config, attention kernel and dropout: workers never read the user's own files again."""
    words: CommandWords
    script: Mapping[str, Any] | None = None
    """A training script of the user's own: ``path``, ``sha256``, ``arguments``, ``working_directory``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run. ``path`` is the folder the workers read and write."""

    number: int
    path: Path
    run_dir: Path

    @property
    def result(self) -> dict[str, Any] | None:
        """What rank 0 wrote after everything had ended well; None if it did not."""
        return read_json(self.path / RESULT) if (self.path / RESULT).exists() else None

    @property
    def log_file(self) -> Path:
        """Everything the launcher and all ranks printed."""
        return self.path / LOG

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What the failed ranks said, in the order of time."""
        return rank_failures(self.path)


def rank_failures(attempt: Path) -> list[dict[str, Any]]:
    """What the failed ranks of an attempt said, in the order of time."""
    reports = []
    for path in attempt.glob("failure_rank_*.json"):
        # a disk in trouble must not keep the others from being heard
        with suppress(OSError, ValueError):
            reports.append(read_json(path))
    return sorted(reports, key=lambda report: report["time"])


def require_new(run_dir: Path) -> None:
    """Make sure that a new run would overwrite nothing. What a dry run left is nothing.

    Raises:
        ConfigurationError: the directory holds a run already.
    """
    marks = (LOG, METRICS, RESULT)
    started = any((path / mark).exists() for path in (run_dir / "attempts").glob("*") for mark in marks)
    if started or any(checkpoint_dir(run_dir).glob("*")):
        raise ConfigurationError(
            [
                error(
                    "run-directory",
                    "run_dir",
                    f"{run_dir} already holds a run",
                    "choose another run_dir, or go on with that run: checkpoint.resume=true",
                )
            ]
        )


def require_usable(run_dir: Path) -> None:
    """Make sure that files can be written to ``run_dir``, without making it.

    Raises:
        ConfigurationError: something on the way is no folder, or may not be written to.
    """
    place = run_dir
    try:
        place = next(path for path in (run_dir, *run_dir.parents) if path.exists())
        reason = "is not a folder" if not place.is_dir() else "" if os.access(place, os.W_OK) else "cannot be written to"
    except OSError as problem:
        reason = f"cannot be used: {problem.strerror}"
    if reason:
        message = f"{place} {reason}" if place == run_dir else f"{run_dir} cannot be made: {place} {reason}"
        raise ConfigurationError([error("run-directory", "run_dir", message, "choose a folder that can be written to")])


def start_run(run_dir: Path, contents: RunContents, *, wandb_id: str | None = None) -> Attempt:
    """Freeze the request of a new run and open its first attempt. All its attempts are one W&B run, ``wandb_id`` or a new id.

    Raises:
        ConfigurationError: the directory holds a run already.
    """
    require_new(run_dir)
    request = run_dir / "request"
    _write_contents(request, contents)
    write_json(request / "run.json", {"run_name": run_dir.name, "wandb_id": wandb_id or secrets.token_hex(4)})
    return _open_attempt(run_dir, contents, resume_tag=None)


def resume_run(run_dir: Path, contents: RunContents, *, resume_tag: str | None) -> Attempt:
    """Open the next attempt of an existing run, which goes on from the checkpoint ``resume_tag``, or starts over without.

    Raises:
        ConfigurationError: the directory holds no run.
    """
    if not (run_dir / "request" / "run.json").exists():
        raise ConfigurationError(
            [
                error(
                    "resume",
                    "run_dir",
                    f"{run_dir} holds no run to go on with",
                    "name the directory of the run, or start a new one: checkpoint.resume=false",
                )
            ]
        )
    return _open_attempt(run_dir, contents, resume_tag=resume_tag)


def recorded_words(run_dir: Path) -> CommandWords:
    """What the newest attempt was started with; nothing if the directory holds no run."""
    newest = newest_attempt(run_dir)
    if newest is None:
        return CommandWords()
    path = newest.path / ATTEMPT
    try:
        attempt = read_json(path)
        return CommandWords(overrides=tuple(attempt["overrides"]), config_dir=attempt["config_dir"])
    except (ValueError, KeyError, TypeError, OSError) as problem:
        message = f"{path} is damaged: {problem}"
        raise ConfigurationError([error("resume", "run_dir", message, "restore the file, or start a new run")]) from None


def checkpoint_dir(run_dir: Path) -> Path:
    """Where the checkpoints of a run are."""
    return run_dir / "checkpoints"


@contextmanager
def exclusive(run_dir: Path) -> Iterator[int]:
    """Hold the run directory; two launches of one run would overwrite each other's checkpoints.

    Gives the descriptor that is the lock: processes that inherit it hold the directory as long as they live.

    Raises:
        ConfigurationError: another process holds it, or its file system has no locks.
    """
    with writable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                [
                    error(
                        "run-directory",
                        "run_dir",
                        f"another launch is running in {run_dir}",
                        "wait for it or stop it, or choose another run_dir",
                    )
                ]
            ) from None
        except OSError as problem:
            message = f"{run_dir} cannot be locked: {problem.strerror}"
            fix = "choose a run_dir on a file system with locks (NFS: with its lock service)"
            raise ConfigurationError([error("run-directory", "run_dir", message, fix)]) from None
        yield lock.fileno()


@contextmanager
def writable(run_dir: Path) -> Iterator[None]:
    """While the files of a start are written.

    Raises:
        ConfigurationError: one of them cannot be: a full disk, a quota, other rights.
    """
    try:
        yield
    except OSError as problem:
        message = f"{problem.filename or run_dir} cannot be written: {problem.strerror or problem}"
        fix = "make room (df, quota) and see to the rights of the folder, or choose another run_dir"
        raise ConfigurationError([error("run-directory", "run_dir", message, fix)]) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write ``value`` so that readers see all of it or the file before it."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` so that readers see all of it or the file before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _open_attempt(run_dir: Path, contents: RunContents, *, resume_tag: str | None) -> Attempt:
    number = 1 + max(_attempt_numbers(run_dir), default=0)
    attempt = Attempt(number=number, path=run_dir / "attempts" / str(number), run_dir=run_dir)
    _write_contents(attempt.path, contents)
    checkpoint_dir(run_dir).mkdir(exist_ok=True)
    run = read_json(run_dir / "request" / "run.json")
    write_json(
        attempt.path / ATTEMPT,
        {
            "attempt": number,
            "run_name": run["run_name"],
            "run_dir": str(run_dir),
            "checkpoint_dir": str(checkpoint_dir(run_dir)),
            "resume_tag": resume_tag,
            "wandb_id": run["wandb_id"],
            **asdict(contents.words),
        },
    )
    return attempt


def newest_attempt(run_dir: Path) -> Attempt | None:
    """The newest attempt of a run; None if ``run_dir`` holds no run. One that was cut off while it was written is none."""
    return next((attempt for attempt in _attempts(run_dir) if (attempt.path / ATTEMPT).exists()), None)


def newest_started(run_dir: Path) -> Attempt | None:
    """The newest attempt that has a log, and so was more than a dry run; None if there is none."""
    return next((attempt for attempt in _attempts(run_dir) if attempt.log_file.exists()), None)


def newest_finished(run_dir: Path) -> Attempt | None:
    """The newest attempt that ended well."""
    return next((attempt for attempt in _attempts(run_dir) if attempt.result is not None), None)


def _attempts(run_dir: Path) -> Iterator[Attempt]:
    """What may be the attempts of a run, the newest first."""
    for number in sorted(_attempt_numbers(run_dir), reverse=True):
        yield Attempt(number=number, path=run_dir / "attempts" / str(number), run_dir=run_dir)


def _attempt_numbers(run_dir: Path) -> list[int]:
    return [int(path.name) for path in (run_dir / "attempts").glob("*") if path.name.isdigit()]


def _write_contents(folder: Path, contents: RunContents) -> None:
    write_json(folder / "config.json", asdict(contents.config))
    write_json(folder / "plan.json", contents.plan)
    write_json(folder / "ds_config.json", contents.ds_config)
    write_json(folder / "model.json", contents.model)
    if contents.script is not None:
        write_json(folder / SCRIPT, contents.script)
