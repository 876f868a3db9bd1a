"""What a launch says in each view, with a controller that starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands import launch
from orchestrator.commands.result import INTERRUPTED
from orchestrator.config.load import load_config
from orchestrator.launch.ending.outcome import Outcome
from orchestrator.launch.ending.status import Status
from orchestrator.run_dir import CommandWords


class SilentController:
    """Says a line and is interrupted."""

    def __init__(self, _attempt: Path, _spec: Any, *, private: Any, echo: Callable[[str], None]) -> None:  # noqa: ARG002
        self._echo = echo

    def run(self) -> Outcome:
        self._echo("step 1/5")
        return Outcome(status=Status.interrupted, reason="it was interrupted")


@pytest.mark.parametrize(
    ("words", "told", "not_told"),
    [
        (("view=lines",), ("verdict: feasible", "command:", "lr_scheduler.warmup_steps"), ()),
        (("view=quiet",), ("lr_scheduler.warmup_steps",), ("verdict", "command:", "info:")),
        (("view=quiet", "dry_run=true"), ("verdict: feasible", "command:"), ()),
    ],
)
def test_a_quiet_launch_announces_what_is_to_be_feared_alone(
    words: tuple[str, ...], told: tuple[str, ...], not_told: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "Controller", SilentController)
    # its warmup is longer than the run: a warning
    config = load_config(["experiment=smoke", "preflight=none", *words, f"run_dir={tmp_path / 'run'}"])
    prepared = launch.prepare(config, CommandWords())
    assert isinstance(prepared, launch.PreparedLaunch)
    console = Console(width=400)
    followed: list[Path] = []
    lines: list[str] = []

    @contextmanager
    def follow(attempt: Path) -> Iterator[Callable[[str], None]]:
        followed.append(attempt)
        yield lines.append

    with console.capture() as capture:
        result = launch.start(prepared, lines.append, lambda parts: [console.print(part) for part in parts], follow=follow)  # type: ignore[func-returns-value,arg-type,return-value]
    shown = capture.get()
    assert all(part in shown for part in told)
    assert not any(part in shown for part in not_told)
    if "dry_run=true" not in words:
        assert result.exit_code == INTERRUPTED
        assert (followed, lines) == ([tmp_path / "run" / "attempts" / "1"], ["step 1/5"])
