"""What a rank leaves behind when it fails, for the launcher to find and explain."""

from __future__ import annotations

import os
import socket
import time
import traceback
from pathlib import Path

from orchestrator.run_dir import write_json


def write_failure(attempt_dir: Path, problem: BaseException) -> None:
    """Write ``failure_rank_{RANK}.json`` of this process."""
    rank = int(os.environ.get("RANK", "0"))
    first_line = (str(problem).strip().splitlines() or [""])[0]
    write_json(
        attempt_dir / f"failure_rank_{rank}.json",
        {
            "rank": rank,
            "host": socket.gethostname(),
            "error": f"{type(problem).__name__}: {first_line}".removesuffix(": "),
            "traceback": "".join(traceback.format_exception(problem)),
            "time": time.time(),
        },
    )
