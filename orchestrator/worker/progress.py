"""What a run says while it goes on: rank 0's lines, which the launcher shows to the user."""

from __future__ import annotations

import os

PREFIX = "[orchestrator] "


def say(text: str) -> None:
    """Print a line for the user, from rank 0 only."""
    if os.environ.get("RANK", "0") == "0":
        print(PREFIX + text, flush=True)
