"""The weight folder of a run as this host has it, checked again before anything is read from it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.checkpoints.safetensors import read_weights, weight_findings
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Severity, has_error
from orchestrator.models.layers import Fill
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.models.weights import PretrainedWeights, TensorPlace, stored_weights
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameter_names import named_parameters


def pretrained_weights(folder: Path, spec: ModelSpec, group: TensorParallelGroup) -> Fill:
    """What fills the parameters of a model that starts from ``folder``.

    Raises:
        ConfigurationError: the folder on this host lacks weights of the model, or has others, with every problem.
    """
    return stored_weights(locate_weights(folder, spec), group)


def locate_weights(folder: Path, spec: ModelSpec) -> PretrainedWeights:
    """Where each parameter of ``spec`` is in ``folder``; raises as ``pretrained_weights`` does."""
    expected = [(parameter.name, parameter.shape) for parameter in named_parameters(spec)]
    findings = weight_findings(folder, expected, family=spec.family.value)
    if has_error(findings):
        raise ConfigurationError([finding for finding in findings if finding.severity is Severity.error])
    stored, _ = read_weights(folder)
    assert stored is not None
    found = {name: stored.find(name) for name, _ in expected}
    return PretrainedWeights(
        places={name: TensorPlace(file=tensor.file, name=tensor.name) for name, tensor in found.items() if tensor is not None}
    )
