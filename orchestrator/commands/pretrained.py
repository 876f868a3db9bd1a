"""``model.pretrained``: the shape a weight folder gives a model, and whether its weights are those of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.checkpoints.safetensors import weight_findings
from orchestrator.config.schema import ModelConfig, RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error, warning
from orchestrator.planning.families import SIZES
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_config
from orchestrator.planning.parameter_names import named_parameters

_FIELD = "model.pretrained"
_OWNER = "model.config_path"
_SHAPES_NO_WEIGHT = frozenset(
    {"architectures", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "max_position_embeddings"}
)


def gives_the_shape(config: RunConfig) -> bool:
    """Whether nothing but the weight folder says what the model looks like."""
    return bool(config.model.pretrained) and config.model.config_path is None and config.model.family is None


def with_pretrained_shape(config: RunConfig) -> RunConfig:
    """``config`` with the weight folder as its ``model.config_path``, where the folder gives the shape."""
    if not gives_the_shape(config):
        return config
    return replace(config, model=replace(config.model, config_path=config.model.pretrained))


def spoken_of_pretrained(findings: Sequence[Finding]) -> list[Finding]:
    """Findings about a ``model.config_path`` that stood in for ``model.pretrained``, in the user's own words."""
    return [
        replace(
            finding,
            field=finding.field.replace(_OWNER, _FIELD),
            message=finding.message.replace(_OWNER, _FIELD),
            fix=finding.fix.replace(_OWNER, _FIELD),
        )
        for finding in findings
    ]


def pretrained_findings(config: RunConfig, model: ModelSpec | None) -> list[Finding]:
    """What keeps the weights in ``model.pretrained`` from being those of ``model``; nothing without a folder or a model.

    ``config`` is the configuration that ``model`` was made from. Only headers are read. A resumed run has its weights.
    """
    if not config.model.pretrained or model is None or config.checkpoint.resume:
        return []
    folder = Path(os.path.expanduser(config.model.pretrained))  # noqa: PTH111 - Path's raises for unknown users
    if config.model.config_path != config.model.pretrained and (folder / "config.json").is_file():
        findings = _shape_findings(config.model, folder, model)
        if any(finding.rule == "pretrained-model" for finding in findings):
            return findings
    else:
        findings = []
    return [
        *findings,
        *weight_findings(folder, [(own.name, own.shape) for own in named_parameters(model)], family=model.family.value),
    ]


def _shape_findings(config: ModelConfig, folder: Path, model: ModelSpec) -> list[Finding]:
    """The model of the folder's own ``config.json`` against the model that the options describe."""
    blank: dict[str, Any] = {**dict.fromkeys(SIZES), "family": None, "tie_word_embeddings": None, "hf_config": {}}
    try:
        own = model_spec_from_config(replace(config, config_path=str(folder), pretrained=None, **blank))
    except ConfigurationError as problem:
        return spoken_of_pretrained(problem.findings)
    return [*_differences(own, model, folder), *_other_entries(own.hf_config, model.hf_config, folder)]


def _differences(own: ModelSpec, model: ModelSpec, folder: Path) -> Iterator[Finding]:
    fix = "choose the model of the folder: model=hf, or the preset of the same model"
    if own.family is not model.family:
        message = f"{folder} holds a {own.family} model, and the model is a {model.family}"
        yield error("pretrained-model", _FIELD, message, fix)
        return
    for name in (*SIZES, "tie_word_embeddings"):
        stored, wanted = getattr(own, name), getattr(model, name)
        if stored != wanted and name not in _SHAPES_NO_WEIGHT:
            message = f"{folder} holds a model with {name}={stored}, and model.{name} is {wanted}"
            yield error("pretrained-model", _FIELD, message, fix)


def _other_entries(own: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> Iterator[Finding]:
    """Entries that both state and that say how the weights are used: rotary bases, epsilons, windows."""
    for name in own.keys() & wanted.keys() - _SHAPES_NO_WEIGHT:
        if own[name] != wanted[name] and not name.endswith(("dropout", "pdrop")) and name not in SIZES:
            message = f"the weights in {folder} were trained with {name}={own[name]!r}, the model has {wanted[name]!r}"
            yield warning("pretrained-config", f"model.hf_config.{name}", message, "make sure that the change is meant")
