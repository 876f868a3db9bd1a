"""Draws DeepSpeed JSONs, as they are found and as people break them, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from orchestrator.deepspeed_config.keys.entry import Block, Key, Kind
from orchestrator.deepspeed_config.keys.table import ROOT

BASES: tuple[dict[str, Any], ...] = (
    {"train_micro_batch_size_per_gpu": 1},
    {"train_batch_size": 16, "gradient_accumulation_steps": 2, "fp16": {"enabled": True, "loss_scale": 0}},
    {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "overlap_comm": True, "reduce_bucket_size": 5e8},
        "gradient_clipping": 1.0,
    },
    {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    },
    {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme", "nvme_path": "/local/nvme", "buffer_size": 1e8},
            "offload_optimizer": {"device": "nvme", "nvme_path": "/local/nvme"},
            "sub_group_size": 1e9,
            "stage3_max_live_parameters": 1e9,
        },
        "aio": {"block_size": 1048576, "queue_depth": 8, "overlap_events": True},
    },
    {
        "train_batch_size": 64,
        "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True},
        "fp16": {"enabled": True, "initial_scale_power": 16, "min_loss_scale": 1, "hysteresis": 2},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100, "warmup_max_lr": 1e-3}},
        "wandb": {"enabled": False, "project": "p"},
    },
    {
        "train_micro_batch_size_per_gpu": 2,
        "tensor_parallel": {"autotp_size": 2, "partition_config": {"use_default_specs": False}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "activation_checkpointing": {"partition_activations": True, "number_checkpoints": 4},
    },
    {
        "train_batch_size": 16,
        "pipeline": {"activation_checkpoint_interval": 1},
        "flops_profiler": {"enabled": True, "profile_step": 1},
        "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
        "checkpoint": {"tag_validation": "Warn", "parallel_write": {"pipeline_stage": True}},
        "data_types": {"grad_accum_dtype": "fp32"},
    },
)
REMOVED = (
    ("amp", {"enabled": False}),
    ("amp", {"enabled": True, "opt_level": "O1"}),
    ("sparse_gradients", False),
    ("sparse_gradients", True),
    ("elasticity", {"enabled": False}),
    ("curriculum_learning", {"enabled": True}),
    ("compression_training", {"weight_quantization": {"shared_parameters": {"enabled": False}}}),
    ("zero_optimization.mics_shard_size", -1),
    ("zero_optimization.mics_shard_size", 8),
)
ODD_VALUES = (
    "auto",
    "8",
    "5e8",
    "true",
    "False",
    "none",
    "cpu",
    "",
    None,
    True,
    False,
    0,
    1,
    -1,
    2.0,
    2.5,
    1e30,
    [],
    {},
    [1],
    {"a": 1},
)
ALL_PATHS = (
    ("prefetch_bucket_size", "stage3_prefetch_bucket_size"),
    ("gather_16bit_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
    ("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
    ("cpu_offload", "offload_optimizer"),
    ("cpu_offload_param", "offload_param"),
)


def draw(seed: int, count: int) -> list[dict[str, Any]]:
    """``count`` cases ``{"values": ..., "world": N}``."""
    random_state = random.Random(seed)
    return [{"values": _one(random_state), "world": random_state.choice((1, 2, 4, 8))} for _ in range(count)]


def _one(state: random.Random) -> dict[str, Any]:
    values = deepcopy(state.choice(BASES))
    mutations = (_sound, _sound, _odd, _odd, _misspelt, _as_text, _batch, _moved, _removed, _twice, _flattened)
    for _ in range(state.choice((0, 1, 1, 2, 2, 3, 4))):
        state.choice(mutations)(values, state)
    return values


def _keys(block: Block, prefix: str = "") -> Iterator[tuple[str, Key | Block]]:
    for name, entry in block.by_name.items():
        yield f"{prefix}{name}", entry
        if isinstance(entry, Block):
            yield from _keys(entry, f"{prefix}{name}.")


TABLE = [(path, entry) for path, entry in _keys(ROOT) if entry.removed is None]


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    node: Any = values
    for name in outer:
        if not isinstance(node.get(name), dict):
            node[name] = {}
        node = node[name]
    node[last] = value


def _leaves(values: dict[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in values.items():
        found.append((name,))
        if isinstance(value, dict):
            found += [(name, *rest) for rest in _leaves(value)]
    return found


def _any(values: dict[str, Any], state: random.Random) -> tuple[dict[str, Any], str, str]:
    """A mapping, a key in it, and its dotted path."""
    if not values:
        values["dump_state"] = False
    path = state.choice(_leaves(values))
    node = values
    for name in path[:-1]:
        node = node[name]
    return node, path[-1], ".".join(path)


def _some_value(key: Key, state: random.Random) -> Any:
    """A value of the kind of the key, most often one in range."""
    if key.choices and key.kind is not Kind.texts:
        spellings = [str(choice).lower() for choice in key.choices] if key.caseless else []
        return state.choice([*key.choices, *key.spellings, *spellings])
    low = key.minimum if key.minimum is not None else key.above if key.above is not None else 0
    high = key.maximum if key.maximum is not None else key.below if key.below is not None else 1000
    pool: dict[Kind, tuple[Any, ...]] = {
        Kind.boolean: (True, False),
        Kind.integer: (int(low), int(low) + 1, int(high), int(low) - 1, 16),
        Kind.number: (low, high, (low + high) / 2, low - 1, high + 1),
        Kind.text: ("name", "/some/path", ""),
        Kind.texts: (["a.b.C"], [], list(key.choices[:1])),
        Kind.items: ([], ["all_reduce"]),
        Kind.mapping: ({}, {"a": 1}),
        Kind.anything: (None, 1, "text"),
        Kind.nothing: ("bf16",),
    }
    return state.choice(pool[key.kind])


def _sound(values: dict[str, Any], state: random.Random) -> None:
    path, entry = state.choice(TABLE)
    _put(values, path, _some_value(entry, state) if isinstance(entry, Key) else {})


def _odd(values: dict[str, Any], state: random.Random) -> None:
    path, _ = state.choice(TABLE)
    _put(values, path, deepcopy(state.choice(ODD_VALUES)))


def _misspelt(values: dict[str, Any], state: random.Random) -> None:
    node, name, _ = _any(values, state)
    at = state.randrange(max(1, len(name)))
    wrong = state.choice(
        (name[:at] + name[at + 1 :], f"{name[:at]}{name[at : at + 1]}{name[at:]}", name.upper(), f"{name}s", "comment")
    )
    node[wrong] = node.pop(name)


def _as_text(values: dict[str, Any], state: random.Random) -> None:
    node, name, _ = _any(values, state)
    if isinstance(node[name], (bool, int, float)):
        node[name] = state.choice((str(node[name]), str(node[name]).lower(), f" {node[name]} ", f"{node[name]}.0"))


def _batch(values: dict[str, Any], state: random.Random) -> None:
    name = state.choice(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    values[name] = state.choice((1, 2, 3, 4, 8, 9, 16, 32, 64, 128, 0, -8, 1.0, 0.5))
    if state.random() < 0.2:
        values.pop(name)


def _moved(values: dict[str, Any], state: random.Random) -> None:
    """A key in another block, or a block whose keys stand one level up."""
    node, name, _ = _any(values, state)
    target = state.choice([value for value in (values, *values.values()) if isinstance(value, dict)])
    value = node.pop(name)
    if target is not value and not (isinstance(value, dict) and target in value.values()):
        target[name] = value


def _removed(values: dict[str, Any], state: random.Random) -> None:
    path, value = state.choice(REMOVED)
    _put(values, path, deepcopy(value))


def _twice(values: dict[str, Any], state: random.Random) -> None:
    one, other = state.choice(ALL_PATHS)
    for name in (one, other)[: state.choice((1, 2))]:
        on = {"device": "cpu"} if name.startswith("offload") else 1000 if name.endswith("size") else state.random() < 0.5
        _put(values, f"zero_optimization.{name}", on)


def _flattened(values: dict[str, Any], state: random.Random) -> None:
    node, name, path = _any(values, state)
    values[path] = node.pop(name)
