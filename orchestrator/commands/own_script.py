"""A training script of the user's own: can it be started, and what is kept of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from orchestrator.config.schema import RunConfig
from orchestrator.findings import Finding, error, warning
from orchestrator.run_dir import SCRIPT, read_json

FIELD = "training.script"


def script_findings(config: RunConfig) -> list[Finding]:
    """What keeps the script from being run; nothing where there is none."""
    if config.training.script is None:
        return []
    path = _absolute(config.training.script)
    try:
        source = path.read_bytes()
        compile(source, str(path), "exec")
    except FileNotFoundError:
        return [error("script", FIELD, f"{path} does not exist", "correct the path")]
    except IsADirectoryError:
        return [error("script", FIELD, f"{path} is a folder", "name the file in it that is to run")]
    except OSError as problem:
        return [error("script", FIELD, f"{path} cannot be read: {problem.strerror}", "make it readable")]
    except SyntaxError as problem:
        where = f"line {problem.lineno}: " if problem.lineno else ""
        return [
            error("script", FIELD, f"{path} is not Python: {where}{problem.msg}", "correct it: python -m py_compile shows it")
        ]
    except ValueError as problem:
        return [error("script", FIELD, f"{path} is not Python: {problem}", "name a Python file")]
    return []


def script_entry(config: RunConfig) -> dict[str, Any] | None:
    """What the request keeps of the script: path, hash, arguments, and the folder it is launched in."""
    if config.training.script is None:
        return None
    path = _absolute(config.training.script)
    return {
        "path": str(path),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "arguments": list(config.training.script_arguments),
        "working_directory": str(Path.cwd()),
    }


def resumed_script(config: RunConfig, run_dir: Path) -> list[Finding]:
    """What has changed since the run was started. The script itself finds in its output folder what it goes on from."""
    recorded, entry = run_dir / "request" / SCRIPT, script_entry(config)
    if (entry is not None) != recorded.exists():
        before, now = ("ours", "a script") if entry is not None else ("a script", "ours")
        message = f"the run was started with {before}, and is to go on with {now}"
        return [error("resume-script", FIELD, message, "go on as it was started, or start a new run in another run_dir")]
    if entry is not None and read_json(recorded)["sha256"] != entry["sha256"]:
        message = f"{entry['path']} is not what the run was started with"
        return [warning("resume-script", FIELD, message, "nothing, if it was meant to change")]
    return []


def _absolute(path: str) -> Path:
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path's raises for unknown users
