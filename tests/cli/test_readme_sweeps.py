"""The README's section on sweeps, followed to the letter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.sweep_point import read_points

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text().partition("### Sweeps\n")[2].partition("\n### ")[0]


def test_a_new_user_sweeps_as_the_readme_says(tmp_path: Path) -> None:
    first, again, table = SECTION.partition("```sh\n")[2].partition("```")[0].strip().splitlines()

    def typed(line: str) -> str:
        ended = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    printed = typed(first)
    assert "2 finished, 2 infeasible" in printed
    before = {path: point.started for path, point in read_points(tmp_path / "sweeps" / "first").items()}
    assert "best (minimize loss)" in typed(again)
    points = read_points(tmp_path / "sweeps" / "first")
    assert {path: point.started for path, point in points.items()} == before, "nothing was started again"
    assert {point.metric_name for point in points.values()} == {"loss", None}
    shown = typed(table)
    assert shown.count("finished") >= 2 and shown.count("infeasible") >= 2
