"""What the ranks of a user's own script took, measured after it: with torch where the script has loaded it, else without.

The script may have left its process group, so each rank leaves a file, and rank 0 reads them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from orchestrator.config.enums import Accelerator
from orchestrator.run_dir import read_json, write_json
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.memory_record import peak_resident_bytes, rank_record, report_of

MEMORY = "memory"
"""Folder of the attempt with a file a rank."""
_OTHERS_SECONDS = 60.0
"""So long rank 0 waits for ranks that end after it."""
_LOOK_SECONDS = 0.2


def leave_record(attempt: WorkerAttempt) -> None:
    """Leave what this rank took."""
    write_json(attempt.path / MEMORY / f"{attempt.rank}.json", _own_record(attempt))


def all_ranks(attempt: WorkerAttempt) -> dict[str, Any]:
    """The ``memory`` of ``result.json``, of the ranks that have left theirs in time."""
    deadline = time.monotonic() + _OTHERS_SECONDS
    wanted = attempt.layout.world_size
    while len(left := list((attempt.path / MEMORY).glob("*.json"))) < wanted and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return report_of(sorted((read_json(path) for path in left), key=lambda entry: int(entry["rank"])))


def stack_of_script() -> dict[str, str | int]:
    """Hardware and software that the script trained with; nothing if it did without torch and DeepSpeed."""
    if not _has_trained():
        return {}
    from orchestrator.worker.stack import stack

    return stack()


def memory_at_failure(problem: BaseException) -> dict[str, Any] | None:
    """What this process had, if ``problem`` is that there was not enough."""
    if not _has_trained():
        return None
    from orchestrator.worker.out_of_memory import MemoryWitness

    return MemoryWitness().at_failure(problem)


def _own_record(attempt: WorkerAttempt) -> dict[str, Any]:
    if _has_trained():
        from orchestrator.worker.memory import own_record

        return own_record(attempt.plan, attempt.rank)
    peak = peak_resident_bytes()
    on_cpu = attempt.config.cluster.accelerator is Accelerator.cpu
    return rank_record(attempt.plan, attempt.rank, allocated_bytes=peak, measured_bytes=peak, on_cpu=on_cpu)


def _has_trained() -> bool:
    return {"torch", "deepspeed"} <= sys.modules.keys()
