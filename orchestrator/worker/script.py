"""A training script of the user's own as one rank of an attempt: ``python -m orchestrator.worker.script ATTEMPT_DIR``.

It runs as ``python train.py`` would: ``__main__``, the same arguments, working directory and first entry of ``sys.path``, so
that its own ``models`` is found and ours, ``orchestrator.models``, is another. Around it is what every rank has: the lease, the
rank's record, the failure report and the result. torch comes with the script.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any

from orchestrator import script
from orchestrator.deepspeed_config.script_arguments import resolved
from orchestrator.deepspeed_config.trainer_arguments import as_words
from orchestrator.presence import Phase
from orchestrator.run_dir import RESULT, SCRIPT, read_json, write_json
from orchestrator.worker.attempt import WorkerAttempt, read_attempt
from orchestrator.worker.failure import write_failure
from orchestrator.worker.script_launch import ScriptLaunch
from orchestrator.worker.script_memory import all_ranks, leave_record, memory_at_failure, stack_of_script
from orchestrator.worker.start import main

_LAST_SECONDS = 10.0
"""So long what a failed script has registered with ``atexit`` may take."""


def run(attempt_dir: Path, *, stop: Event | None = None) -> None:
    """Run the script of an attempt as this process's rank; rank 0 leaves ``result.json`` when it has ended well.

    Raises:
        SystemExit: the script left with an exit code other than 0.
        Exception: whatever it raised, after it was written to ``failure_rank_{RANK}.json``.
    """
    started = time.monotonic()
    try:
        attempt = read_attempt(attempt_dir)
        launch = ScriptLaunch(attempt, stop=stop or Event())
        _run_script(attempt, launch)
        _as_at_exit()
        _end(attempt, launch, started)
    except SystemExit as leaving:
        told = leaving.code if isinstance(leaving.code, int) else f"1: {leaving.code}"
        _fail(attempt_dir, leaving, f"the script left with exit code {told}")
        raise
    except BaseException as problem:
        _fail(attempt_dir, problem)
        raise


def _run_script(attempt: WorkerAttempt, launch: ScriptLaunch) -> None:
    """The script from its first line to its end, in this process's ``__main__``.

    Raises:
        FileNotFoundError: this host has not the script, or not the folder the run was launched in.
    """
    entry = read_json(attempt.path / SCRIPT)
    path = Path(entry["path"])
    words = as_words(launch.run.trainer_arguments)
    sys.argv = [str(path), *resolved(entry["arguments"], _values(attempt, launch), words)]
    here = str(Path.cwd())
    os.chdir(entry["working_directory"])
    # where `python -m` puts the working directory, `python train.py` has the script's own
    if sys.path and sys.path[0] in ("", here):
        del sys.path[0]
    sys.path.insert(0, str(path.parent))
    launch.run.output_dir.mkdir(parents=True, exist_ok=True)
    _set_environment(attempt, launch)
    script.join(launch)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            if not isinstance(leaving.code, int):
                print(leaving.code, file=sys.stderr)
            raise


def _values(attempt: WorkerAttempt, launch: ScriptLaunch) -> Mapping[str, object]:
    """What the names in braces stand for."""
    run, config = launch.run, attempt.config
    return {
        "ds_config": run.ds_config,
        "run_dir": run.run_dir,
        "attempt_dir": run.attempt_dir,
        "output_dir": run.output_dir,
        "seed": run.seed,
        "max_steps": run.max_steps,
        "learning_rate": config.optimizer.lr,
        "sequence_length": config.data.sequence_length,
        **attempt.layout.to_dict(),
    }


def _set_environment(attempt: WorkerAttempt, launch: ScriptLaunch) -> None:
    """The paths for scripts that do not import us, and what ``accelerate launch`` sets: accelerate then finds the JSON."""
    run = launch.run
    os.environ |= {
        "ORCHESTRATOR_RUN_DIR": str(run.run_dir),
        "ORCHESTRATOR_ATTEMPT_DIR": str(run.attempt_dir),
        "ORCHESTRATOR_OUTPUT_DIR": str(run.output_dir),
        "ORCHESTRATOR_DS_CONFIG": str(run.ds_config),
    }
    dtype = next((name for name in ("bf16", "fp16") if name in attempt.ds_config), "no")
    os.environ.setdefault("ACCELERATE_USE_DEEPSPEED", "true")
    os.environ.setdefault("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(run.ds_config))
    os.environ.setdefault("ACCELERATE_MIXED_PRECISION", dtype)


def _end(attempt: WorkerAttempt, launch: ScriptLaunch, started: float) -> None:
    """Leave what this rank took, and on rank 0 the result of the run."""
    launch.waiting(Phase.end)
    leave_record(attempt)
    if not attempt.is_first:
        return
    launch.read_trainer_state()
    held_out, loss = launch.values.get("held_out_loss"), launch.values.get("loss")
    result: dict[str, Any] = {
        "status": "stopped" if launch.stopped else "completed",
        "attempt": attempt.number,
        "script": sys.argv[0],
        "steps": launch.step,
        "final_loss": loss,
        "held_out_loss": held_out,
        "held_out_losses": {},
        "best": None,
        "metric": loss if held_out is None else held_out,
        "values": launch.values,
        "unigram_entropy": None,
        "tokens": None,
        "tokens_per_second": launch.values.get("tokens_per_second"),
        "memory": all_ranks(attempt),
        "stack": stack_of_script(),
        "checkpoint": None if launch.checkpoint is None else str(launch.checkpoint),
        "tokenizer": None,
        "seconds": time.monotonic() - started,
    }
    write_json(attempt.path / RESULT, {**result, "wandb": launch.close(result)})


def _fail(attempt_dir: Path, problem: BaseException, told: str | None = None) -> None:
    """Leave the failure with the script's own frames, and give what it has registered for its end a moment."""
    problem.__traceback__ = _own_frames(problem.__traceback__)
    write_failure(attempt_dir, problem, memory=memory_at_failure(problem), error=told)
    if sys.excepthook is not sys.__excepthook__ and not isinstance(problem, SystemExit):
        _guarded(lambda: sys.excepthook(type(problem), problem, problem.__traceback__))
    last = threading.Thread(target=lambda: _guarded(atexit._run_exitfuncs), daemon=True)
    last.start()
    last.join(_LAST_SECONDS)


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """From the script's first frame on; all of them where the script was not reached."""
    own = frames
    while own is not None and own.tb_frame.f_code.co_filename != sys.argv[0]:
        own = own.tb_next
    return own or frames


def _as_at_exit() -> None:
    """What the end of an interpreter brings, which this process never sees: threads end, what was registered is called."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()


def _guarded(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as problem:  # the script's failure counts, not what comes of it
        print(f"while the script ended: {type(problem).__name__}: {problem}", file=sys.stderr)


if __name__ == "__main__":
    main(load=lambda _attempt_dir: run)
