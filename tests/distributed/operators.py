"""Which of DeepSpeed's operators are still to be built; runs in a rank, where DeepSpeed is."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.config.schema import RunConfig
from orchestrator.worker.operators import operators_to_build


def operators_before_and_after_a_build(config: RunConfig, extensions_dir: Path) -> tuple[list[str], list[str]]:
    """What is to be built in an empty folder, and once the first of it is there."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(extensions_dir)
    before = operators_to_build(config)
    library = extensions_dir / before[0] / f"{before[0]}.so"
    library.parent.mkdir(parents=True)
    library.touch()
    return before, operators_to_build(config)
