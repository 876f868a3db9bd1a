"""What people have run into in public: each as a configuration of ours, with the severity, the option and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.commands.planned import fixes_for, plan_run
from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, Severity
from orchestrator.planning.plan import Plan, partition_entry
from orchestrator.units import GB
from tests.unit.planning.configurations import ROOT

DATA = ROOT / "tests" / "data"
REPORTS = yaml.safe_load((DATA / "bug_reports.yaml").read_text(encoding="utf-8"))
EXPRESSIBLE = [entry for entry in REPORTS["entries"] if "overrides" in entry]


@pytest.fixture(params=EXPRESSIBLE, ids=lambda entry: entry["id"])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    entry: dict[str, Any] = request.param
    return entry


def planned(entry: dict[str, Any], folder: Path) -> tuple[RunConfig | None, Plan | None, list[Finding]]:
    """Configuration, plan and findings; neither of the first two when the words themselves are refused."""
    words = [*REPORTS["base"], *(word.replace("DATA", str(DATA)) for word in entry["overrides"])]
    if "hostfile" in entry:
        (folder / "hostfile").write_text(entry["hostfile"], encoding="utf-8")
        words.append(f"cluster.hostfile={folder / 'hostfile'}")
    try:
        config = load_config(words)
    except ConfigurationError as problem:
        return None, None, list(problem.findings)
    plan = plan_run(config)
    return config, plan, list(plan.findings)


def test_it_is_told_with_its_severity_its_option_and_the_way_out(report: dict[str, Any], tmp_path: Path) -> None:
    _, _, findings = planned(report, tmp_path)
    for wanted in report["found"]:
        (finding,) = [one for one in findings if (one.rule, one.field) == (wanted["rule"], wanted["field"])]
        severities = ("error", "warning") if wanted["severity"] == "any" else (wanted["severity"],)
        assert finding.severity in severities, finding
        assert wanted.get("says", "") in finding.message
        assert wanted.get("fix", "") in finding.fix
    expected = {wanted["rule"] for wanted in report["found"] if wanted["severity"] in ("error", "any")}
    assert {one.rule for one in findings if one.severity is Severity.error} <= expected, findings


def case(name: str) -> dict[str, Any]:
    (entry,) = [entry for entry in EXPRESSIBLE if entry["id"] == name]
    return entry


@pytest.mark.parametrize("name", ["BR-041", "BR-042"])
def test_an_offloaded_model_is_not_said_to_need_less_than_a_gigabyte(name: str, tmp_path: Path) -> None:
    _, plan, _ = planned(case(name), tmp_path)
    assert plan is not None and plan.memory is not None
    least, most = case(name)["device_gb"]
    assert least <= max(entry.device_bytes for entry in plan.memory.device) / GB <= most


@pytest.mark.parametrize("name", ["BR-043", "BR-126"])
def test_a_model_that_does_not_fit_comes_with_what_would(name: str, tmp_path: Path) -> None:
    config, plan, _ = planned(case(name), tmp_path)
    assert config is not None and plan is not None
    fixes = fixes_for(config, plan)
    assert fixes
    again = load_config([*REPORTS["base"], *case(name)["overrides"], *fixes[0].overrides])
    assert plan_run(again).fits
    assert all(word in {override for fix in fixes for override in fix.overrides} for word in case(name).get("fixed_by", []))


def test_an_uneven_cut_loses_no_layer(tmp_path: Path) -> None:
    _, plan, _ = planned(case("BR-100"), tmp_path)
    assert plan is not None and plan.partition is not None
    assert sum(stage.stop - stage.start for stage in plan.partition.stages) == case("BR-100")["layers"]


def test_a_tied_head_on_another_stage_is_counted_there_too(tmp_path: Path) -> None:
    _, plan, _ = planned(case("BR-105"), tmp_path)
    assert plan is not None and plan.model is not None and plan.partition is not None
    held = sum(stage["parameters"] for stage in partition_entry(plan.model, plan.partition)["stages"])
    assert held == plan.model.num_parameters + plan.model.vocab_size * plan.model.hidden_size


def test_every_report_says_how_it_is_answered() -> None:
    names = [entry["id"] for entry in REPORTS["entries"]]
    assert len(set(names)) == len(names)
    for entry in REPORTS["entries"]:
        assert entry["threads"] and entry["situation"]
        assert ("overrides" in entry) != bool(entry.get("because")), entry["id"]
