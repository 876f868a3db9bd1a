"""``"auto"`` becomes what the installed Trainer makes of it, and disagreements are those it refuses."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest
from packaging.version import Version

from orchestrator.deepspeed_config.auto import ARGUMENT_KEYS, read_hf_arguments, resolve_auto
from orchestrator.deepspeed_config.lint import LintContext, lint
from orchestrator.deepspeed_config.read import Document
from orchestrator.errors import ConfigurationError
from tests.unit.deepspeed_config.installed import ask_trainer

FILLED = {
    "train_batch_size": (32, 64),
    "train_micro_batch_size_per_gpu": (2, 4),
    "gradient_accumulation_steps": (1, 2),
    "gradient_clipping": (1.0, 0.5),
    "fp16": {"enabled": (True, False)},
    "bf16": {"enabled": (True, False)},
    "optimizer": {
        "type": ("AdamW",),
        "params": {"lr": (1e-4, 5e-5), "betas": ([0.9, 0.999],), "eps": (1e-8,), "weight_decay": (0.0, 0.1)},
    },
    "scheduler": {
        "type": ("WarmupDecayLR",),
        "params": {
            "warmup_min_lr": (0,),
            "warmup_max_lr": (1e-4, 5e-5),
            "warmup_num_steps": (10, 1),
            "total_num_steps": (100, 200),
        },
    },
    "zero_optimization": {
        "stage": (0, 2, 3),
        "reduce_bucket_size": (5e8,),
        "stage3_prefetch_bucket_size": (5e7,),
        "stage3_param_persistence_threshold": (1e5,),
    },
}
ARGUMENTS = {
    "per_device_train_batch_size": (2, 4),
    "gradient_accumulation_steps": (1, 2),
    "learning_rate": (1e-4, 5e-5),
    "weight_decay": (0.0, 0.1),
    "max_grad_norm": (1.0, 0.5),
    "warmup_steps": (0, 10, 0.1),
    "bf16": (True, False),
    "fp16": (False,),
    "auto_find_batch_size": (False, False, True),
    "save_on_each_node": (False, True),
}
NEVER_AUTO = {"type", "stage"}


def drawn_case(state: random.Random) -> dict:
    def values(template):
        chosen = {}
        for name, options in template.items():
            if state.random() < 0.3 and name != "type":
                continue
            if isinstance(options, dict):
                chosen[name] = values(options)
            else:
                chosen[name] = "auto" if name not in NEVER_AUTO and state.random() < 0.7 else state.choice(options)
        return chosen

    arguments = {name: state.choice(options) for name, options in ARGUMENTS.items() if state.random() < 0.7}
    arguments["max_steps"] = state.choice((100, 200))
    return {"values": values(FILLED), "arguments": arguments, "hidden_size": state.choice((768, 2048, 4096)), "world": 8}


def context(case: dict) -> LintContext:
    arguments = {name: key.default for name, key in ARGUMENT_KEYS.items()} | case["arguments"]
    return LintContext(
        version=Version("0.19.8"),
        num_devices=case["world"],
        devices_per_host=8,
        hf_arguments=arguments,
        hidden_size=case["hidden_size"],
    )


def test_the_trainer_fills_the_same_values_and_refuses_the_same_keys():
    state = random.Random(4)
    cases = [drawn_case(state) for _ in range(1000)]
    disagreements = 0
    for case, theirs in zip(cases, ask_trainer(cases), strict=True):
        document = Document(path="", values=deepcopy(case["values"]), is_strict=True)
        ours, findings = resolve_auto(document, context(case))
        assert {path: value for path, value in flat(ours).items() if value != flat(theirs["values"])[path]} == {
            # below stage 3 the Trainer leaves these two, and DeepSpeed drops them for its defaults
            path: {"prefetch": 50_000_000, "param_pe": 100_000}[path.split("stage3_")[1][:8]]
            for path, value in flat(theirs["values"]).items()
            if value == "auto"
        }
        refused = [finding.field for finding in findings if finding.rule == "json-hf-mismatch"]
        assert sorted(refused) == sorted(theirs["mismatches"])
        disagreements += bool(refused)
    assert 100 < disagreements < 900


def flat(values: dict, prefix: str = "") -> dict:
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def resolved(values: dict, **arguments) -> list:
    case = {"values": values, "arguments": arguments, "hidden_size": None, "world": 8}
    run = context(case)
    filled, findings = resolve_auto(Document(path="", values=values, is_strict=True), run)
    return [*findings, *lint(filled, run)]


@pytest.mark.parametrize(
    ("values", "field", "needs"),
    [
        ({"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage", "write the value"),
        ({"zero_optimization": {"stage": 1, "overlap_comm": "auto"}}, "zero_optimization.overlap_comm", "write the value"),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}},
            "scheduler.params.total_num_steps",
            "max_steps",
        ),
        ({"zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"}}, "zero_optimization.reduce_bucket_size", "model="),
    ],
)
def test_what_the_trainer_cannot_fill_is_an_error_that_says_what_is_missing(values, field, needs):
    (finding,) = [finding for finding in resolved(values) if finding.rule == "json-auto"]
    assert finding.field == field
    assert needs in finding.fix


def test_a_file_with_comments_is_refused_for_the_trainer():
    case = {"values": {}, "arguments": {}, "hidden_size": None, "world": 8}
    _, findings = resolve_auto(Document(path="", values={}, is_strict=False), context(case))
    assert [finding.rule for finding in findings] == ["json-hf-strict"]


def test_yaml_and_json_arguments_are_read_and_defaults_filled_in(tmp_path):
    file = tmp_path / "args.yaml"
    file.write_text("per_device_train_batch_size: 2\nlearning_rate: 5e-6\nreport_to: wandb\n")
    arguments, findings = read_hf_arguments(str(file))
    assert arguments["per_device_train_batch_size"] == 2
    assert arguments["learning_rate"] == 5e-6
    assert arguments["max_grad_norm"] == 1.0
    # YAML 1.1 takes 5e-6 for a text, and so does the Trainer
    assert [(finding.severity.value, finding.field) for finding in findings] == [("warning", "hf_arguments.learning_rate")]
    file.write_text('{"learning_rate": 5e-6}')
    arguments, findings = read_hf_arguments(str(file))
    assert (arguments["learning_rate"], findings) == (5e-6, [])


@pytest.mark.parametrize(
    ("content", "field", "part"),
    [
        ("per_device_train_batch_size: two", "hf_arguments.per_device_train_batch_size", "whole number"),
        ("- 1\n- 2", "hf_arguments", "mapping"),
        ("a: [1", "hf_arguments", "line"),
        ("", "hf_arguments", "empty"),
        ("fp16: 3", "hf_arguments.fp16", "true or false"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, content, field, part):
    file = tmp_path / "args.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError) as refusal:
        read_hf_arguments(str(file))
    (finding,) = refusal.value.findings
    assert finding.field == field
    assert part in finding.message


def test_a_misspelt_argument_is_pointed_out(tmp_path):
    file = tmp_path / "args.json"
    file.write_text('{"gradient_acumulation_steps": 4}')
    _, (finding,) = read_hf_arguments(str(file))
    assert "gradient_accumulation_steps" in finding.fix
