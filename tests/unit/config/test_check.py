from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import OmegaConf

from orchestrator.config.check import check_values, unknown_flag
from orchestrator.config.enums import Precision
from orchestrator.config.load import combine_overrides, load_config, quoted
from orchestrator.config.multirun import load_multirun
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError

COMPOSED = OmegaConf.to_container(OmegaConf.structured(load_config([])), enum_to_str=True)


def problems(**changes: Any) -> dict[str, str]:
    values = copy.deepcopy(COMPOSED)
    assert isinstance(values, dict)
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = values
        for name in parents:
            section = section[name]
        section[last] = value
    _, findings = check_values(values)
    return {finding.field: finding.message for finding in findings}


def test_what_hydra_composes_becomes_the_typed_configuration() -> None:
    config = load_config(
        ["precision=fp32", "zero.reduce_bucket_size=5e8", "optimizer.lr=1", "launcher.environment.NCCL_DEBUG=INFO"]
    )
    assert config.precision.dtype is Precision.fp32
    assert config.zero.reduce_bucket_size == 500_000_000
    assert type(config.zero.reduce_bucket_size) is int
    assert type(config.optimizer.lr) is float
    assert config.launcher.environment == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("word", "field", "example"),
    [
        ("--output=json", "--output", "output=json"),
        ("--dry-run", "--dry-run", "dry_run=VALUE"),
        ("--optimizer.lr=1e-3", "--optimizer.lr", "optimizer.lr=1e-3"),
        ("--gpus", "--gpus", "KEY=VALUE"),
    ],
)
def test_an_option_written_as_a_flag_is_told_how_options_are_written(word: str, field: str, example: str) -> None:
    finding = unknown_flag(word)
    assert finding.field == field
    assert f"without dashes: {example};" in finding.fix


@pytest.mark.parametrize("words", [["zero.stage", "=", "3"], ["=3"], ["zero.stage"]])
def test_words_with_spaces_around_the_equals_sign_are_told_so(words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_config(words)
    assert [finding.rule for finding in refused.value.findings] == ["override-grammar"] * len(words)
    assert all("without spaces" in finding.fix for finding in refused.value.findings)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("zero__stage", "2"),
        ("zero__stage", True),
        ("zero__stage", 1.5),
        ("zero__reduce_bucket_size", 3774873.6),
        ("zero__stage", "auto"),
        ("zero__reduce_bucket_size", 1e308),
        ("training__max_steps", float("inf")),
        ("training__max_steps", float("nan")),
        ("optimizer__lr", float("nan")),
        ("optimizer__lr", float("-inf")),
        ("dry_run", "true"),
        ("dry_run", 1),
        ("optimizer__lr", "3e-4x"),
        ("optimizer__betas", 0.9),
        ("optimizer__betas", [0.9, "x"]),
        ("precision__dtype", "bfloat16"),
        ("precision__dtype", None),
        ("launcher__environment", ["A=B"]),
        ("launcher__environment", {"A": None}),
        ("zero", 3),
        ("run_dir", "???"),
    ],
)
def test_a_wrong_value_is_refused_at_its_field(field: str, value: Any) -> None:
    found = problems(**{field: value})
    assert len(found) == 1
    assert next(iter(found)).startswith(field.replace("__", "."))


def test_every_problem_is_reported_at_once() -> None:
    found = problems(zero__stage="x", zero__stag=1, training__max_steps=None, seed=1.5)
    assert found.keys() == {"zero.stage", "zero.stag", "training.max_steps", "seed"}


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("zero.stge=1", "zero.stage"),
        ("stage=3", "zero.stage"),
        ("gradient_clipping=1", "training.gradient_clipping"),
        ("zero_optimization.stage=1", "zero.stage"),
        ("train_batch_size=8", "training.train_batch_size"),
        ("offload.device=cpu", "offload."),
        ("modle=gpt2", "model"),
        ("+zero.typo=1", "zero."),
    ],
)
def test_an_unknown_key_names_the_nearest(override: str, suggestion: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_config([override])
    (finding,) = refused.value.findings
    assert suggestion in finding.fix


def test_a_configuration_survives_being_written_and_read() -> None:
    config, findings = check_values(COMPOSED)  # type: ignore[arg-type]
    assert not findings
    assert isinstance(config, RunConfig)
    assert config.model == load_config([]).model


def test_overrides_given_again_replace_the_recorded_ones() -> None:
    recorded = ["zero=stage3", "zero.sub_group_size=1000", "training.max_steps=5", "+launcher.environment.A=1", "data.path=x"]
    given = ["training.max_steps=7", "launcher.environment.A=2", "zero=stage1"]
    assert combine_overrides(recorded, given) == ["data.path=x", *given]


@pytest.mark.parametrize(
    "value", ["/plain", "/with space", "/it's", "/back\\slash", "/end\\", "/both\\'", "/a=b,c{d}", "/[x]:y"]
)
def test_a_quoted_value_arrives_as_it_is(value: str) -> None:
    assert load_config([f"data.cache_dir={quoted(value)}"]).data.cache_dir == value


@pytest.mark.parametrize(
    "override",
    [
        "launcher.environment.WANDB_API_KEY=hush",
        "+launcher.environment.HF_TOKEN=hush",
        "launcher.environment={MY_PASSWORD: hush}",
    ],
)
@pytest.mark.parametrize("check", [load_config, load_multirun])
def test_a_secret_is_refused_and_not_repeated(override: str, check: Callable[[list[str]], object]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check([override])
    (finding,) = refused.value.findings
    assert finding.field.startswith("launcher.environment.")
    assert "hush" not in str(finding)


def test_a_secret_in_a_file_is_refused_as_well() -> None:
    assert problems(launcher__environment={"WANDB_API_KEY": "hush"}).keys() == {"launcher.environment.WANDB_API_KEY"}
