"""``orchestrator rules``: the whole list, one rule in full, and that nothing a run can be told is missing from it."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.commands.checks import check_entries
from orchestrator.commands.rules import all_rules
from orchestrator.findings import Severity
from orchestrator.planning.rules.registry import RULES
from tests.cli.command_line import orchestrator

ROOT = Path(__file__).parents[2]
MAKERS = {severity.value for severity in Severity}


def test_the_list_as_json(tmp_path: Path) -> None:
    ended = orchestrator("rules", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    rules = ended.json["rules"]
    assert len({rule["name"] for rule in rules}) == len(rules) > 100
    assert all(rule.keys() == {"name", "severity", "subject", "description", "reason"} for rule in rules)
    (stage,) = [rule for rule in rules if rule["name"] == "pipeline-zero-stage"]
    assert stage["severity"] == "error"
    assert stage["subject"] == "pipeline"
    assert not list(tmp_path.iterdir())


def test_the_list_can_be_read_in_eighty_columns(tmp_path: Path) -> None:
    ended = orchestrator("rules", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for entry in all_rules():
        assert any(line.split()[:2] == [entry.name, entry.severity.value] for line in lines), entry


def test_one_rule_in_full_says_why_it_is_there(tmp_path: Path) -> None:
    ended = orchestrator("rules", "offload-param-stage", "hostfile-duplicate", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert "Below stage 3 the parameters would stay on the device" in ended.stdout
    assert "hostfile-duplicate   error" in ended.stdout
    assert "nvme-stage" not in ended.stdout


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [(("offload-param-stag",), "offload-param-stag", "offload-param-stage"), (("zero.stge=1",), "zero.stge", "zero.stage")],
)
def test_an_unknown_name_or_option_is_refused(words: tuple[str, ...], field: str, told: str, tmp_path: Path) -> None:
    ended = orchestrator("rules", *words, "output=json", cwd=tmp_path)
    assert ended.code == 2
    (finding,) = ended.json["findings"]
    assert finding["field"] == field
    assert told in finding["fix"]


def findings_in_the_code() -> dict[str, set[Severity]]:
    """Rule -> severities, of every ``error(...)``, ``warning(...)`` and ``info(...)`` outside the planner's rules."""
    made: defaultdict[str, set[Severity]] = defaultdict(set)
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        inside = path.relative_to(ROOT / "orchestrator").parts
        if inside[0] in ("conf", "models", "findings.py") or inside[:2] == ("planning", "rules"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
        }
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS):
                continue
            name = call.args[0]
            if isinstance(name, ast.Constant):
                made[name.value].add(Severity(call.func.id))
            elif isinstance(name, ast.Name) and name.id in constants:
                made[constants[name.id]].add(Severity(call.func.id))
            else:
                made[f"{path.name}:{call.lineno} {ast.unparse(name)}"].add(Severity(call.func.id))
    return dict(made)


def test_every_finding_that_the_code_can_make_is_listed_with_its_worst_severity() -> None:
    listed = {entry.name: entry.severity for entry in all_rules()}
    made = findings_in_the_code()
    assert made.keys() <= listed.keys(), made.keys() - listed.keys()
    for name, severities in made.items():
        assert all(severity.is_at_most(listed[name]) for severity in severities), name
        assert name in RULES or listed[name] in severities, name


def test_nothing_is_listed_that_is_not_checked() -> None:
    made = findings_in_the_code()
    names = [entry.name for entry in check_entries()]
    assert len(set(names)) == len(names)
    assert not set(names) & RULES.keys()
    assert set(names) <= made.keys()
