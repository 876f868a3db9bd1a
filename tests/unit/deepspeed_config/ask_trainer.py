"""Asks the installed transformers what its Trainer makes of a DeepSpeed JSON: ``python ask_trainer.py < CASES``.

accelerate, which holds the look-up of keys, need not be installed: the three look-ups it adds are written out here.
"""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace
from typing import Any

from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from transformers.training_args import TrainingArguments

DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "warmup_steps": 0,
    "fp16": False,
    "bf16": False,
    "fp16_full_eval": False,
    "bf16_full_eval": False,
    "save_on_each_node": False,
}


class Lookups(HfTrainerDeepSpeedConfig):
    """The Trainer's configuration over a mapping."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.mismatches: list[str] = []

    def find_config_node(self, path: str) -> tuple[Any, str]:
        *outer, last = path.split(".")
        node = self.config
        for name in outer:
            node = node.get(name)
            if node is None:
                return None, last
        return node, last

    def get_value(self, path: str, default: Any = None) -> Any:
        node, last = self.find_config_node(path)
        return default if node is None else node.get(last, default)

    def is_true(self, path: str) -> bool:
        return bool(self.get_value(path))

    def is_zero3(self) -> bool:
        return self.get_value("zero_optimization.stage", -1) == 3


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The filled configuration, and the keys the Trainer would refuse."""
    arguments = {**DEFAULTS, **case["arguments"]}
    given = SimpleNamespace(**arguments, world_size=case["world"])
    given.get_warmup_steps = lambda steps: TrainingArguments.get_warmup_steps(given, steps)
    config = Lookups(case["values"])
    config.trainer_config_process(given, auto_find_batch_size=bool(arguments.get("auto_find_batch_size")))
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=case["hidden_size"]))
    with contextlib.suppress(ValueError):  # raised for what is in mismatches
        config.trainer_config_finalize(given, model, arguments["max_steps"])
    return {"values": config.config, "mismatches": [line.split()[2].split("=")[0] for line in config.mismatches]}


if __name__ == "__main__":
    sys.stdout.write("\nANSWER " + json.dumps([answer(case) for case in json.load(sys.stdin)]) + "\n")
