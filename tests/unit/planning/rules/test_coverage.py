"""DeepSpeed's own rules, row by row: which rule of ours answers, or why a configuration of ours cannot break it."""

from __future__ import annotations

import csv

import pytest

from orchestrator.commands.rules import all_rules
from tests.unit.planning.configurations import ROOT

with (ROOT / "tests" / "data" / "deepspeed_rules_coverage.csv").open(encoding="utf-8", newline="") as _file:
    ROWS = list(csv.DictReader(_file))
NAMES = {entry.name for entry in all_rules()}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["row"])
def test_every_row_is_answered(row: dict[str, str]) -> None:
    names = [name for name in row["names"].split(";") if name]
    assert set(names) <= NAMES
    assert row["answer"] in ("rule", "no", "raw", "elsewhere")
    assert bool(names) == (row["answer"] == "rule") or row["answer"] == "elsewhere"
    assert row["note"] or names or row["answer"] == "raw"


def test_every_section_is_there_and_no_row_twice() -> None:
    rows = [row["row"] for row in ROWS]
    assert len(set(rows)) == len(rows)
    assert {row.split(".")[0].rstrip("a") for row in rows} == {str(section) for section in range(20)}
