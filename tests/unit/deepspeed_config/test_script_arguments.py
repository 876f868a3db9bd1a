"""Names in braces among a script's arguments, and TrainingArguments with which the installed Trainer accepts the JSON."""

from __future__ import annotations

import json

import pytest

from orchestrator.config.enums import LrSchedule
from orchestrator.deepspeed_config.script_arguments import resolved, unknown_names
from orchestrator.deepspeed_config.trainer_arguments import as_words, trainer_arguments
from tests.unit.deepspeed_config.golden import CASES, compiled, configuration
from tests.unit.deepspeed_config.installed import ask_trainer
from tests.unit.planning.configurations import run_config

VALUES = {"ds_config": "/run/ds.json", "max_steps": 100}
DATA_PARALLEL = [
    name
    for name, changes in CASES.items()
    if not {"parallelism__pipeline_parallel_size", "parallelism__tensor_parallel_size"} & changes.keys()
]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("{ds_config}", ["/run/ds.json"]),
        ("--deepspeed={ds_config},{max_steps}", ["--deepspeed=/run/ds.json,100"]),
        ('{"min_lr": 1e-5}', ['{"min_lr": 1e-5}']),
        ("{unknown}", ["{unknown}"]),
        ("{trainer_arguments}", ["--seed=1", "--bf16=True"]),
        ("--more={trainer_arguments}", ["--more={trainer_arguments}"]),
    ],
)
def test_known_names_are_filled_in_and_all_else_stays(argument: str, expected: list[str]) -> None:
    assert resolved([argument], VALUES, ["--seed=1", "--bf16=True"]) == expected


def test_only_names_that_stand_for_nothing_are_doubtful() -> None:
    arguments = ["{ds_config}", '{"a": {"b": 1}}', "{ds_confg}", "--x={trainer_arguments}"]
    assert unknown_names(arguments) == ["ds_confg", "trainer_arguments"]
    assert unknown_names(["{trainer_arguments}", "{run_dir}"]) == []


def test_the_installed_trainer_accepts_every_json_with_the_arguments_that_go_with_it() -> None:
    cases = []
    for name in DATA_PARALLEL:
        config, ds_config = configuration(name), compiled(name)
        world = ds_config["train_batch_size"] // (
            ds_config["train_micro_batch_size_per_gpu"] * ds_config["gradient_accumulation_steps"]
        )
        arguments = trainer_arguments(config, ds_config)
        cases.append({"values": ds_config, "arguments": arguments, "hidden_size": 1024, "world": world})
    answers = ask_trainer(cases)
    assert {name: answer["mismatches"] for name, answer in zip(DATA_PARALLEL, answers, strict=True)} == {
        name: [] for name in DATA_PARALLEL
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lr_scheduler__type": LrSchedule.constant}, {"lr_scheduler_type": "constant_with_warmup"}),
        ({}, {"lr_scheduler_type": "cosine"}),
        (
            {"lr_scheduler__min_lr": 1e-5},
            {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": 1e-05}'},
        ),
        (
            {"lr_scheduler__type": LrSchedule.wsd, "training__max_steps": 200},
            {
                "lr_scheduler_type": "warmup_stable_decay",
                "lr_scheduler_kwargs": '{"num_decay_steps": 20, "min_lr_ratio": 0.0, "decay_type": "linear"}',
            },
        ),
    ],
)
def test_the_trainer_gets_the_schedule(changes: dict, expected: dict[str, str]) -> None:
    words = as_words(trainer_arguments(run_config(**changes), compiled("stage1_bf16_cuda")))
    given = dict(word.removeprefix("--").split("=", 1) for word in words)
    assert {name: given.get(name) for name in expected} == expected
    if "lr_scheduler_kwargs" in given:
        json.loads(given["lr_scheduler_kwargs"])
