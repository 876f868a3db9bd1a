"""Hugging Face TrainingArguments that agree with a compiled configuration.

The Trainer holds its arguments, defaults included, against the DeepSpeed JSON and stops at the first difference
(``HfTrainerDeepSpeedConfig.trainer_config_process``, transformers 5.24). The JSON states every value, so that all of these must
be given to it. It makes its own learning rate, with the schedule named here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.config.enums import LrSchedule
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.learning_rate import decay_steps


def trainer_arguments(config: RunConfig, ds_config: Mapping[str, Any]) -> dict[str, Any]:
    """By name, what the Trainer needs beside the path of ``ds_config``: batch, optimizer, precision, schedule, length, seed.

    ``ds_config`` is what ``compile_config`` has made of ``config``.
    """
    optimizer = ds_config["optimizer"]["params"]
    betas = optimizer.get("betas")
    adam = {} if betas is None else {"adam_beta1": betas[0], "adam_beta2": betas[1]}
    if "eps" in optimizer:
        adam["adam_epsilon"] = optimizer["eps"]
    return {
        "per_device_train_batch_size": ds_config["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": ds_config["gradient_accumulation_steps"],
        "max_steps": config.training.max_steps,
        "learning_rate": optimizer["lr"],
        "weight_decay": optimizer["weight_decay"],
        **adam,
        "max_grad_norm": ds_config["gradient_clipping"],
        **_schedule(config),
        "bf16": "bf16" in ds_config,
        "fp16": "fp16" in ds_config,
        "logging_steps": config.training.log_every,
        "seed": config.seed,
    }


def as_words(arguments: Mapping[str, Any]) -> list[str]:
    """The same for a command line that ``HfArgumentParser`` reads."""
    return [f"--{name}={_word(value)}" for name, value in arguments.items()]


def _schedule(config: RunConfig) -> dict[str, Any]:
    scheduler, peak = config.lr_scheduler, config.optimizer.lr
    entry: dict[str, Any] = {"warmup_steps": scheduler.warmup_steps}
    match scheduler.type:
        case LrSchedule.constant:
            return {**entry, "lr_scheduler_type": "constant_with_warmup"}
        case LrSchedule.cosine if scheduler.min_lr == 0:
            return {**entry, "lr_scheduler_type": "cosine"}
        case LrSchedule.cosine:
            return {**entry, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": scheduler.min_lr}}
        case LrSchedule.wsd:
            shape = {
                "num_decay_steps": decay_steps(scheduler, config.training.max_steps),
                "min_lr_ratio": scheduler.min_lr / peak if peak > 0 else 0.0,
                "decay_type": "linear",
            }
            return {**entry, "lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": shape}


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
