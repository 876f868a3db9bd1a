"""Public bug reports whose input is a DeepSpeed JSON: each gets the severity and the key a user needs.

BR-049 and BR-052 (order of calls in a script) and BR-099 and later of other kinds have no JSON to look at.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.deepspeed_config.checked import run

CASES = json.loads((Path(__file__).parents[2] / "data" / "bug_reports_json.json").read_text())["cases"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {
        case["id"]: run("validate", case["json"], folder, *case["words"], hf_arguments=case.get("hf_arguments"))
        for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_report_is_answered(case, answers):
    found = answers[case["id"]]
    for severity, field, part in case["expect"]:
        matching = [
            finding
            for finding in found["findings"]
            if finding["severity"] == severity and finding["field"] == field and part in finding["message"] + finding["fix"]
        ]
        assert matching, [(f["severity"], f["field"], f["message"]) for f in found["findings"]]
    if "verdict" in case:
        assert found["verdict"] == case["verdict"]
    elif any(severity == "error" for severity, _, _ in case["expect"]):
        assert found["verdict"] == "invalid"


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_nothing_else_is_wrong_with_it(case, answers):
    """Every error is about a key of the report, or says what else DeepSpeed would stumble over."""
    found = answers[case["id"]]
    asked = {field for _, field, _ in case["expect"]}
    surplus = {finding["field"]: finding["rule"] for finding in found["findings"] if finding["severity"] == "error"}
    assert {field: rule for field, rule in surplus.items() if field not in asked} == ALSO_WRONG.get(case["id"], {})


ALSO_WRONG = {
    "BR-018": {"zero_optimization.stage": "fp16-stage"},
    "BR-022": {"zero_optimization.stage": "fp16-stage"},
    "BR-030": {
        "zero_optimization.stage3_prefetch_bucket_size": "nvme-prefetch",
        "zero_optimization.stage3_max_live_parameters": "nvme-live-parameters",
        "cluster.device_memory_gib": "device-memory",
    },
    "BR-090": {"optimizer.type": "json-optimizer-type"},
    "BR-033": {"zero_optimization.stage3_prefetch_bucket_size": "nvme-prefetch"},
}
