"""Hydra's own flags, and completion in a real shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator

START = f"""
PATH={Path(sys.executable).parent}:$PATH
eval "$(orchestrator -sc install=bash)"
complete -p orchestrator > /dev/null || exit 1
"""
PRESS_TAB = """
COMP_LINE="{line}"; COMP_WORDS=($COMP_LINE); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
hydra_bash_completion; echo "${{COMPREPLY[@]}}"
"""


def test_bash_completes_verbs_groups_options_and_own_files(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 1\n")
    offered = {
        "orchestrator la": {"launch"},
        "orchestrator launch -m zero=stage1 zero=st": {f"zero=stage{stage}" for stage in range(4)},
        "orchestrator validate training.max": {"training.max_steps="},
        f"orchestrator launch --config-dir {tmp_path} experiment=mi": {"experiment=mine"},
    }
    script = START + "".join(PRESS_TAB.format(line=line) for line in offered)
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert [set(line.split()) for line in shell.stdout.splitlines()] == list(offered.values()), shell.stderr


@pytest.mark.parametrize("words", [("-sc", "install=csh"), ("-sc",), ("launch", "-m", "--cfg", "job", "zero=stage1,stage2")])
def test_flags_that_make_no_sense_are_refused_in_words(words: tuple[str, ...], tmp_path: Path) -> None:
    ended = orchestrator(*words, cwd=tmp_path)
    assert ended.code == 2
    assert "fix:" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--cfg", "job", "--resolve", "zero=stage3"), "stage: 3"),
        (("--cfg", "hydra", "sweep=optuna"), "n_trials: 20"),
        (("--info", "plugins"), "BasicSweeper"),
        (("--hydra-help",), "--multirun"),
    ],
)
def test_hydras_own_flags_work(words: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    ended = orchestrator("launch", *words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert shown in ended.stdout
    assert not list(tmp_path.iterdir())
