"""Number formats: ``fp16``, ``bf16``, ``torch_autocast`` and ``data_types``."""

from __future__ import annotations

from types import MappingProxyType

from orchestrator.deepspeed_config.keys.entry import Key, Kind, boolean, integer, model, number, plain, text, texts

DTYPES = ("fp32", "fp16", "bf16")
DTYPE_SPELLINGS = MappingProxyType(
    {
        "torch.float32": "fp32",
        "float32": "fp32",
        "float": "fp32",
        "torch.float16": "fp16",
        "float16": "fp16",
        "half": "fp16",
        "torch.bfloat16": "bf16",
        "bfloat16": "bf16",
    }
)
"""What DeepSpeed takes for each format beside its short name."""


def dtype(name: str, **facts: str) -> Key:
    """A key that names a number format, by any of its spellings."""
    return text(name, None, choices=DTYPES, spellings=DTYPE_SPELLINGS, **facts)


def communication_dtype(name: str, default: str | None) -> Key:
    """A key that names the format of a collective; only the short names are known there."""
    return text(name, default, choices=DTYPES, caseless=True, optional=True)


FP16 = model(
    "fp16",
    boolean("enabled", False),
    boolean("auto_cast", False),
    number("loss_scale", 0, minimum=0),
    integer("initial_scale_power", 16),
    integer("loss_scale_window", 1000, digits_only=True),
    integer("hysteresis", 2),
    boolean("consecutive_hysteresis", False),
    integer("min_loss_scale", 1, digits_only=True),
    boolean("fp16_master_weights_and_grads", False),
)

_BF16_KEYS = (
    boolean("enabled", False),
    boolean("immediate_grad_update", False),
    boolean("check_grad_overflow", True, earlier_default=("0.19.6", False), added="0.18.2"),
    boolean("bf16_master_weights_and_grads", False, added="0.19.6"),
    boolean("bf16_optimizer_states", False, added="0.19.6"),
)
BF16 = model("bf16", *_BF16_KEYS, optional=True)
BFLOAT16 = model("bfloat16", *_BF16_KEYS)
"""The old name of ``bf16``, read only where that is missing."""

TORCH_AUTOCAST = plain(
    "torch_autocast",
    boolean("enabled", False),
    text(
        "dtype",
        None,
        optional=False,
        choices=(*DTYPES, "int8"),
        spellings=MappingProxyType({**DTYPE_SPELLINGS, "torch.int8": "int8"}),
    ),
    texts("lower_precision_safe_modules", None),
    added="0.18.2",
)

DATA_TYPES = plain(
    "data_types",
    dtype("grad_accum_dtype"),
    dtype("param_dtype", added="0.19.6"),
    dtype("buffer_dtype", added="0.19.6"),
    Key(name="keep_in_fp32_modules", kind=Kind.texts, default="auto", takes_auto=True, added="0.19.8"),
)
