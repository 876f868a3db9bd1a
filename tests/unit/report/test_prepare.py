"""How the making of tokens is shown: a line now and then, or a bar."""

from __future__ import annotations

import io
from itertools import count

import pytest
from rich.console import Console

from orchestrator.config.enums import View
from orchestrator.report import prepare
from orchestrator.report.prepare import PrepareView, said
from orchestrator.tokens.request import PrepareProgress

GIB = 2**30
PROGRESS = PrepareProgress(
    stage="making tokens",
    bytes=GIB // 2,
    num_bytes=GIB,
    seconds=50.0,
    fresh_bytes=GIB // 4,
    tokens=150_000_000,
    fresh_tokens=50_000_000,
    documents=1000,
    bad={"empty": 2, "broken_json": 1},
)


def shown(lines: list[str], *, view: View, terminal: bool = False) -> str:
    stream = io.StringIO()
    with PrepareView(Console(file=stream, force_terminal=terminal, width=160), view) as shows:
        for line in lines:
            shows.line(line)
    return stream.getvalue()


def test_rate_and_rest_are_those_of_this_start():
    assert said(PROGRESS) == (
        "50.0% of 1.00 GiB, 150 M tokens, 1 M tokens/s, bad documents: 2 empty, 1 broken_json, 1 min 40 s left"
    )


def test_nothing_is_divided_by_zero_at_the_start():
    first = PrepareProgress(stage="making tokens", bytes=0, num_bytes=0, seconds=0.0, fresh_bytes=0)
    assert said(first) == "0.0% of 0 B"


def test_off_a_terminal_there_are_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(100, 4)
    monkeypatch.setattr(prepare.time, "monotonic", lambda: next(clock))
    output = shown([PROGRESS.line()] * 12 + ["going on after 3 complete shards"], view=View.lines)
    lines = output.splitlines()
    assert 2 < len(lines) < 8
    assert all(line.startswith("making tokens: 50.0%") for line in lines[:-1])
    assert lines[-1] == "going on after 3 complete shards"
    assert "\x1b" not in output


def test_on_a_terminal_there_is_a_bar() -> None:
    output = shown([PROGRESS.line()] * 3, view=View.live, terminal=True)
    assert "making tokens" in output
    assert "━" in output
    assert "1 M tokens/s" in output


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    assert shown([PROGRESS.line(), "a remark"], view=View.quiet, terminal=terminal) == ""
