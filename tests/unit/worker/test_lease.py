"""The thread that ends a rank, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.lease import EXPIRE_SECONDS, OVER_EXIT_CODE, RENEW_SECONDS, Lease

WAITS = "import threading; threading.Event().wait()"
PRINTS = "import os\nwhile True: os.write(2, b'x' * 4096)"
RANK = "import sys; from pathlib import Path; from orchestrator.worker.lease import watch_lease\n"


def start(attempt: Path, program: str) -> subprocess.Popen[bytes]:
    """A rank whose main thread never comes back, and whose output nobody reads."""
    source = f"{RANK}watch_lease(Path(sys.argv[1]), rank=0)\nprint('up', flush=True)\n{program}"
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(attempt)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.mark.parametrize("program", [WAITS, PRINTS], ids=["waiting for ever", "its output is read by nobody"])
def test_whatever_the_main_thread_does_the_rank_ends_with_its_lease(tmp_path: Path, program: str) -> None:
    lease = Lease(tmp_path)
    rank = start(tmp_path, program)
    try:
        time.sleep(RENEW_SECONDS + 1)
        lease.renew()
        assert rank.poll() is None
        lease.end()
        assert rank.wait(60) == OVER_EXIT_CODE
    finally:
        rank.kill()
        rank.communicate()


def test_a_rank_whose_controller_was_killed_ends_within_thirty_seconds(tmp_path: Path) -> None:
    Lease(tmp_path)
    began = time.monotonic()
    rank = start(tmp_path, WAITS)
    up = time.monotonic()
    try:
        assert rank.wait(60) == OVER_EXIT_CODE
        ended = time.monotonic()
        assert ended - began > EXPIRE_SECONDS - 1
        assert ended - up < 30
    finally:
        rank.kill()
        _, said = rank.communicate()
    assert b"rank 0 ends: the controller of the run has not been heard of for" in said
