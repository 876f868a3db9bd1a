"""DeepSpeed's Muon: which parameters it updates, the matrices of the layers and not those of the model's ends; its compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import deepspeed
from deepspeed.runtime.config import MUON_OPTIMIZER, DeepSpeedConfig
from torch import nn

from orchestrator.config.enums import OptimizerType
from orchestrator.models.parts import OutputHead, PositionEmbedding, TokenEmbedding

_DISABLE = "TORCHDYNAMO_DISABLE"
"""torch's variable; its configuration of the same meaning is read after the import."""


@contextmanager
def matrices_of_layers() -> Iterator[None]:
    """Inside, DeepSpeed's Muon takes the matrices of the layers and leaves the rest to AdamW.

    By itself it leaves out what has "embed" or "lm_head" in its name, and our layers are numbered.
    """
    original = deepspeed.set_optimizer_flags
    deepspeed.set_optimizer_flags = _tag
    try:
        yield
    finally:
        deepspeed.set_optimizer_flags = original


@contextmanager
def compiler_only_for_muon(optimizer: OptimizerType) -> Iterator[None]:
    """Inside, building an engine does not import torch's compiler unless ``optimizer`` is Muon.

    DeepSpeed imports Muon, which compiles its iteration, whatever the optimizer is: a fifth of the time of a rank's start.
    """
    before = os.environ.get(_DISABLE)
    if optimizer is not OptimizerType.Muon:
        os.environ[_DISABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(_DISABLE, None)
        if before is not None:
            os.environ[_DISABLE] = before


def num_dimensions(parameter: nn.Parameter) -> int:
    """Dimensions of the whole parameter; ZeRO-3 keeps an empty one in the module and the shape beside it."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def _tag(config: DeepSpeedConfig, model: nn.Module) -> None:
    """``deepspeed.set_optimizer_flags`` for models of ours."""
    if config.optimizer_name != MUON_OPTIMIZER:
        return
    ends = [module for module in model.modules() if isinstance(module, (TokenEmbedding, PositionEmbedding, OutputHead))]
    outside = {id(parameter) for end in ends for parameter in end.parameters()}
    for parameter in model.parameters():
        parameter.use_muon = num_dimensions(parameter) == 2 and id(parameter) not in outside
        parameter.muon_num_heads = None
