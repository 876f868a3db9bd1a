"""Asks the installed DeepSpeed: a program, so that the tests' own process never imports it.

``python ask_deepspeed.py judge < CASES``: whether ``DeepSpeedConfig`` accepts each ``{"values": ..., "world": N}``.
``python ask_deepspeed.py describe``: the fields of its pydantic models, and the keys and defaults of the other blocks.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
import types
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import config as runtime
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

MODELS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "tensorboard": TensorBoardConfig,
    "wandb": WandbConfig,
    "csv_monitor": CSVConfig,
    "comet": CometConfig,
    "comms_logger": CommsLoggerConfig,
    "compile": CompileConfig,
    "hybrid_engine": runtime.HybridEngineConfig,
    "tensor_parallel": TPTrainingConfig,
    "tensor_parallel.tensor_parallel": TPConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
    "weight_quantization": WeightQuantConfig,
}
BOUNDS = {"Ge": "minimum", "Gt": "above", "Le": "maximum", "Lt": "below"}
"""pydantic's names of the bounds, and ours."""


def judge() -> None:
    """Print, for each case on standard input, the refusal or what DeepSpeed would use."""
    runtime.dist.get_rank = lambda *_, **__: 0
    verdicts = []
    for case in json.load(sys.stdin):
        runtime.dist.get_world_size = lambda *_, world=case["world"], **__: world
        try:
            verdicts.append({"refusal": None, "used": used(runtime.DeepSpeedConfig(case["values"]))})
        except Exception as problem:  # whatever it raises is a refusal
            verdicts.append({"refusal": f"{type(problem).__name__}: {str(problem)[:300]}"})
    answer(verdicts)


def used(config: Any) -> dict[str, Any]:
    """The values a run is planned from, by their paths in a JSON."""
    zero = json.loads(config.zero_config.model_dump_json(by_alias=True, exclude={"cpu_offload", "cpu_offload_param"}))
    flat = {
        "train_batch_size": config.train_batch_size,
        "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_clipping": config.gradient_clipping,
        "prescale_gradients": config.prescale_gradients,
        "gradient_predivide_factor": config.gradient_predivide_factor,
        "zero_allow_untested_optimizer": config.zero_allow_untested_optimizer,
        "tensor_parallel.autotp_size": config.tensor_parallel_config.autotp_size,
    }
    for name, value in zero.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        flat |= {f"zero_optimization.{name}.{key}".rstrip("."): item for key, item in inner}
    for name, block in (("fp16", config.float16_config), ("bf16", config.bfloat16_config)):
        flat |= {f"{name}.{key}": value for key, value in json.loads(block.model_dump_json()).items()}
    return flat


def describe() -> None:
    """Print the models' fields, and what a configuration without any key amounts to."""
    fields = {path: {name: field(entry) for name, entry in cls.model_fields.items()} for path, cls in MODELS.items()}
    empty = runtime.DeepSpeedConfig({"train_batch_size": 1})
    plain = {
        "aio": AIO_DEFAULT_DICT,
        "pipeline": empty.pipeline,
        "activation_checkpointing": vars(empty.activation_checkpointing_config),
        "flops_profiler": vars(empty.flops_profiler_config),
        "autotuning": vars(empty.autotuning_config),
        "expert_parallel": vars(empty.expert_parallel_config),
    }
    constants = {name: value for name, value in vars(runtime).items() if name.strip("_").isupper()}
    schedulers = {
        name: list(inspect.signature(getattr(lr_schedules, name)).parameters) for name in lr_schedules.VALID_LR_SCHEDULES
    }
    answer(
        {
            "models": fields,
            "plain": plain,
            "constants": constants,
            "top": vars(empty),
            "schedulers": schedulers,
            "torch_optimizers": classes(torch.optim),
            "torch_schedulers": classes(torch.optim.lr_scheduler),
        }
    )


def classes(module: Any) -> list[str]:
    """The names of a module's classes."""
    return [name for name, value in vars(module).items() if isinstance(value, type)]


def field(entry: Any) -> dict[str, Any]:
    """One field of a model: kind, default, bounds, choices, alias."""
    default = entry.get_default(call_default_factory=True)
    bounds = {
        ours: getattr(item, theirs.lower())
        for item in entry.metadata
        for theirs, ours in BOUNDS.items()
        if type(item).__name__ == theirs
    }
    extra = entry.json_schema_extra or {}
    return {
        "kind": kind(entry.annotation),
        "optional": type(None) in get_args(entry.annotation) and get_origin(entry.annotation) in (Union, types.UnionType),
        "default": default.value if isinstance(default, Enum) else default,
        "alias": entry.alias,
        "deprecated": bool(extra.get("deprecated")),
        "choices": choices(entry.annotation),
        **bounds,
    }


def kind(annotation: Any) -> str:
    """The first real type of an annotation, by name."""
    inner = [item for item in get_args(annotation) if item is not type(None)]
    if get_origin(annotation) in (Union, types.UnionType):
        return kind(int if int in inner else inner[0])
    if get_origin(annotation) is Literal:
        return "str"
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, Enum):
        return "int" if issubclass(origin, int) else "str"
    return getattr(origin, "__name__", str(origin))


def choices(annotation: Any) -> list[Any] | None:
    """The values of an enum or a literal."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.value for member in annotation]
    return None


def answer(value: Any) -> None:
    """Print one line of JSON that a reader can tell from a library's own output."""
    sys.stdout.write("\nANSWER " + json.dumps(value, default=str) + "\n")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    {"judge": judge, "describe": describe}[sys.argv[1]]()
