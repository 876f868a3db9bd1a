"""Asks the installed DeepSpeed and transformers, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def ask(question: str, cases: list[dict[str, Any]] | None = None) -> Any:
    """The answer of ``ask_deepspeed.py QUESTION`` to ``cases``."""
    return _answer("ask_deepspeed.py", question, cases=cases)


def ask_trainer(cases: list[dict[str, Any]]) -> Any:
    """The answers of ``ask_trainer.py`` to ``cases``."""
    return _answer("ask_trainer.py", cases=cases)


def _answer(program: str, *words: str, cases: list[dict[str, Any]] | None) -> Any:
    ended = subprocess.run(
        [sys.executable, str(FOLDER / program), *words],
        input=json.dumps(cases),
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(line.removeprefix("ANSWER "))
