"""What a rank leaves behind when it fails, for the launcher to find and explain."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.run_dir import write_json


def write_failure(
    attempt_dir: Path, problem: BaseException, *, memory: Mapping[str, Any] | None = None, error: str | None = None
) -> None:
    """Write ``failure_rank_{RANK}.json`` of this process; ``memory`` is what it had when there was not enough.

    ``error`` says what happened where ``problem`` itself does not.
    """
    rank = int(os.environ.get("RANK", "0"))
    first_line = (str(problem).strip().splitlines() or [""])[0]
    write_json(
        attempt_dir / f"failure_rank_{rank}.json",
        {
            "rank": rank,
            "host": socket.gethostname(),
            "error": error or f"{type(problem).__name__}: {first_line}".removesuffix(": "),
            "traceback": "".join(traceback.format_exception(problem)),
            "time": time.time(),
            "memory": memory,
        },
    )
