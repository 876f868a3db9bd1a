"""ZeRO-3 saves memory only if nothing holds on to the weights that were gathered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_gathered_weight_outlives_its_use(tmp_path):
    program = Path(__file__).with_name("count_saved_weights.py")
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "KEPT 0" in ended.stdout.splitlines()
