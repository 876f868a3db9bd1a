"""What the configuration says of the optimizer, kept over the loading of a checkpoint.

DeepSpeed restores the settings of the run that saved together with the optimizer's state. The state is the checkpoint's,
the settings are this run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAMES = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""Settings of a parameter group; no optimizer has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Settings of each parameter group, and the norm that gradients are clipped to, where the optimizer is who clips."""

    groups: Sequence[Mapping[str, Any]]
    clip_grad: float | None


def optimizer_settings(engine: Any) -> OptimizerSettings:
    """The settings of an engine that has loaded nothing: those of the configuration."""
    groups = [{name: group[name] for name in NAMES if name in group} for group in engine.basic_optimizer.param_groups]
    return OptimizerSettings(groups=groups, clip_grad=getattr(engine.optimizer, "clip_grad", None))


def apply_settings(engine: Any, settings: OptimizerSettings) -> None:
    """Set the settings, and the learning rate that the schedule has for the next step."""
    scheduler = engine.lr_scheduler
    scheduler.base_lrs = [own["initial_lr"] for own in settings.groups]
    groups = engine.basic_optimizer.param_groups
    for group, own, factor in zip(groups, settings.groups, scheduler.lr_lambdas, strict=True):
        group.update(own)
        group["lr"] = own["initial_lr"] * factor(scheduler.last_epoch)
    if settings.clip_grad is not None:
        engine.optimizer.clip_grad = settings.clip_grad
