"""What workers need through pdsh: the shell of every host reads it from the attempt, because command lines are seen by all.

DeepSpeed's pdsh runner puts variables into its command line, which it also logs, and quotes them badly. So the hosts' shells
read ``worker_env.sh`` instead (``--venv_script``), and through it what is private, from a file that is not there for long.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from orchestrator.config.schema import LauncherConfig
from orchestrator.launch.remote import ssh_options
from orchestrator.launch.setup_lines import sourced_text

WORKER_ENVIRONMENT = "worker_env.sh"
_PRIVATE_ENVIRONMENT = "private_env.sh"


def pdsh_environment(launcher: LauncherConfig) -> dict[str, str]:
    """Variables of DeepSpeed's pdsh runner itself: our ssh for pdsh, and no ``.deepspeed_env`` of other jobs."""
    own = shlex.join([*launcher.ssh_arguments, *ssh_options(launcher)])
    arguments = f"{os.environ.get('PDSH_SSH_ARGS_APPEND', '')} {own}".strip()
    return {"DS_ENV_FILE": os.devnull, "PDSH_SSH_ARGS_APPEND": arguments}


def worker_environment_text(attempt: Path, environment: Mapping[str, str], setup: tuple[str, ...]) -> str:
    """The content of ``worker_env.sh``."""
    private = shlex.quote(str(attempt / _PRIVATE_ENVIRONMENT))
    return f"if [ -r {private} ]; then . {private}; fi\n{sourced_text(setup, environment)}"


def write_private(attempt: Path, private: Mapping[str, str]) -> None:
    """Leave private variables for the hosts' shells, readable by this user alone."""
    descriptor = os.open(attempt / _PRIVATE_ENVIRONMENT, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(sourced_text((), private))


def remove_private(attempt: Path) -> None:
    """Take them away again."""
    (attempt / _PRIVATE_ENVIRONMENT).unlink(missing_ok=True)


def without(names: Mapping[str, str], argv: tuple[str, ...]) -> tuple[str, ...]:
    """``argv`` without these variables: DeepSpeed's runner exports some (``MLFLOW_...``) by command line."""
    return ("env", *(word for name in names for word in ("-u", name)), *argv) if names else argv
