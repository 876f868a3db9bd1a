"""Who may import whom. The README's architecture section shows the same table."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SCHEMA = {"config.enums", "config.schema", "config.data", "config.training", "config.tracking", "config.sweep"}
"""The options, which anyone may know."""
MAY_IMPORT: dict[str, set[str]] = {
    "findings": set(),
    "units": set(),
    "errors": {"findings"},
    "config": {"errors", "findings"},
    "deepspeed_config": {*SCHEMA, "errors", "findings", "units"},
    "planning": {"deepspeed_config", *SCHEMA, "errors", "findings", "units"},
    "tokens": {*SCHEMA, "errors", "findings", "units"},
    "run_dir": {*SCHEMA, "errors", "findings"},
    "lease": set(),
    "metrics_file": set(),
    "presence": {"run_dir"},
    "control": {"run_dir"},
    "sweep_point": {"run_dir"},
    "script": {"worker.trainer_report"},
    "checkpoints": {"errors", "findings", "units"},
    "steady": set(),
    "tracking": {*SCHEMA, "run_dir", "steady", "sweep_point"},
    "launch": {
        "checkpoints",
        "planning",
        "tokens.sources",
        "deepspeed_config",
        *SCHEMA,
        "config.secret_names",
        "run_dir",
        "lease",
        "presence",
        "control",
        "metrics_file",
        "errors",
        "findings",
        "units",
    },
    "results": {"launch", "planning", "control", "presence", "run_dir", "sweep_point", "metrics_file", *SCHEMA},
    "report": {"results", "planning", "launch", "control", "presence", "sweep_point", "tokens", "config", "findings", "units"},
    "commands": {
        "steady",
        "tracking.wandb_mode",
        "launch",
        "results",
        "checkpoints",
        "run_dir",
        "sweep_point",
        "tokens",
        "lease",
        "presence",
        "control",
        "report",
        "planning",
        "deepspeed_config",
        "config",
        "errors",
        "findings",
        "units",
    },
    "cli": {"commands", "report", "run_dir", "config", "errors", "findings"},
    "models": {"planning", *SCHEMA, "errors", "findings"},
    "worker": {
        "models",
        "planning",
        "checkpoints",
        "tokens",
        "tracking",
        "run_dir",
        "lease",
        "presence",
        "script",
        "config",
        "deepspeed_config",
        "errors",
        "findings",
        "units",
    },
}
HEAVY = {"torch", "deepspeed", "transformers", "tokenizers", "safetensors", "wandb"}
MAY_USE_HEAVY = {"worker", "models"}
EXCEPTIONS = {("tracking/wandb.py", "wandb")}


def source_files() -> list[Path]:
    files = [*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "models").rglob("*.py")]
    own = [path for path in files if "conf" not in path.parts]
    return sorted(own, key=str)


def relative(path: Path) -> Path:
    return path.relative_to(ROOT / "orchestrator") if path.is_relative_to(ROOT / "orchestrator") else path.relative_to(ROOT)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unit_of(path: Path) -> str:
    return relative(path).parts[0].removesuffix(".py")


def allowed(unit: str, imported: str) -> bool:
    inside = imported.removeprefix("orchestrator.")
    return inside.split(".")[0] == unit or any(
        inside == target or inside.startswith(f"{target}.") for target in MAY_IMPORT[unit]
    )


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(relative(path)))
def test_imports_follow_the_table(path: Path) -> None:
    unit = unit_of(path)
    if unit in ("__init__", "__main__"):
        return
    for imported in imports(path):
        package = imported.split(".")[0]
        assert package not in ("models", "conf", "tests"), f"{path} imports {imported}: use orchestrator.{imported}"
        if package == "orchestrator":
            assert allowed(unit, imported), f"{unit} may not import {imported}"
        elif package in HEAVY and unit not in MAY_USE_HEAVY:
            assert (str(relative(path)), package) in EXCEPTIONS, f"{path} may not import {package}"


def test_the_command_line_loads_no_training_library() -> None:
    program = (
        "import pkgutil, sys, importlib, orchestrator.cli, orchestrator.commands\n"
        "for module in pkgutil.iter_modules(orchestrator.commands.__path__, 'orchestrator.commands.'):\n"
        "    importlib.import_module(module.name)\n"
        f"print(sorted({HEAVY!r} & sys.modules.keys()))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    ).stdout.strip()
    assert loaded == "[]"


def test_no_file_passes_five_hundred_lines() -> None:
    long_files = {str(relative(path)): count for path in source_files() if (count := len(path.read_text().splitlines())) > 500}
    assert not long_files
