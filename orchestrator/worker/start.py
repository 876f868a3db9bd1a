"""The worker, one process a device: ``python -m orchestrator.worker.start ATTEMPT_DIR``.

Reads nothing but the attempt directory and its place among the ranks (``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``,
``MASTER_ADDR``, ``MASTER_PORT``), which the launcher puts into the environment. torch and DeepSpeed, whose import may take a
minute, come after the lease is watched.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from orchestrator.errors import ConfigurationError
from orchestrator.presence import RankRecord, write_rank
from orchestrator.worker.failure import write_failure
from orchestrator.worker.lease import watch_lease


def main(arguments: Sequence[str] | None = None, *, load: Callable[[Path], Callable[..., None]] | None = None) -> NoReturn:
    """Run this process's part of the attempt named on the command line: its training, or what ``load`` gives.

    Exits with 0 when it is done, 1 when it failed, 2 when no attempt is named, ``lease.OVER_EXIT_CODE`` when its lease
    is over, and as a script of the user's own says when it leaves with a code.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m orchestrator.worker.start ATTEMPT_DIR", file=sys.stderr)
        sys.exit(2)
    for stop in (signal.SIGTERM, signal.SIGINT):
        # Python's own handlers wait for the next bytecode, and a rank inside a collective may never reach one.
        signal.signal(stop, signal.SIG_DFL)
    code = 0
    try:
        _work(Path(words[0]), load or _load)
    except ConfigurationError as refusal:
        _say([f"{found.severity}: {found.field}: {found.message}; {found.fix}" for found in refusal.findings])
        code = 1
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        _say(traceback.format_exc().splitlines())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The destructors of a failed rank wait for peers that are gone, and those of a good one have been seen to abort.
    os._exit(code)


def _say(lines: Sequence[str]) -> None:
    """In the log the output of all ranks is mixed: each line says whose it is, as torch's own do."""
    rank = os.environ.get("RANK", "0")
    print("\n".join(f"[rank{rank}]: {line}" for line in lines), file=sys.stderr)


def _work(attempt_dir: Path, load: Callable[[Path], Callable[..., None]]) -> None:
    rank = int(os.environ["RANK"])
    write_rank(
        attempt_dir,
        RankRecord(rank=rank, local_rank=int(os.environ["LOCAL_RANK"]), host=socket.gethostname(), pid=os.getpid()),
    )
    stop = watch_lease(attempt_dir, rank=rank)
    run = _without_collections(load, attempt_dir)
    run(attempt_dir, stop=stop)


def _without_collections(load: Callable[[Path], Callable[..., None]], attempt_dir: Path) -> Callable[..., None]:
    """What ``load`` gives. What its imports leave, a million objects, stays to the end: no garbage collection looks at it, now
    or in training, where DeepSpeed asks for whole ones.
    """
    gc.disable()
    run = load(attempt_dir)
    gc.freeze()
    gc.enable()
    return run


def _load(attempt_dir: Path) -> Callable[..., None]:
    """The training, with its libraries; a host on which one is missing or broken leaves that as its failure."""
    try:
        from orchestrator.worker.train import run
    except BaseException as problem:
        write_failure(attempt_dir, problem)
        raise
    return run


if __name__ == "__main__":
    main()
