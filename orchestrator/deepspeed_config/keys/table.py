"""The whole table: every key of a DeepSpeed JSON."""

from __future__ import annotations

from orchestrator.deepspeed_config.keys.entry import Block, anything, boolean, integer, number, plain, removed, text
from orchestrator.deepspeed_config.keys.precision import BF16, BFLOAT16, DATA_TYPES, FP16, TORCH_AUTOCAST, communication_dtype
from orchestrator.deepspeed_config.keys.services import SERVICES
from orchestrator.deepspeed_config.keys.zero import ZERO

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

_REMOVED = {
    "amp": "0.19.8",
    "nebula": "0.19.7",
    "compression_training": "0.19.7",
    "quantize_training": "0.19.7",
    "sparse_attention": "0.19.7",
    "eigenvalue": "0.19.8",
    "elasticity": "0.19.8",
    "graph_harvesting": "0.19.8",
    "curriculum_learning": "0.19.8",
    "progressive_layer_drop": "0.19.8",
}

REPLACEMENTS = {
    "amp": "use fp16, bf16 or torch_autocast",
    "elasticity": "set the batch sizes for the devices you have",
    "curriculum_learning": "use data_efficiency.data_sampling.curriculum_learning",
    "nebula": "checkpoints are written by torch.save",
    "zero_optimization.mics_shard_size": "use zero_optimization.zero_hpz_partition_size, or plain stage 3",
}
"""What takes the place of a removed key, where something does."""

ROOT: Block = plain(
    "",
    *(integer(name, None, optional=True, minimum=1) for name in BATCH_KEYS),
    boolean("managed_gradient_accumulation", True, added="0.19.6"),
    integer("steps_per_print", None, optional=True),
    boolean("dump_state", False),
    boolean("disable_python_gc", False, added="0.19.8"),
    boolean("disable_allgather", False),
    communication_dtype("communication_data_type", None),
    communication_dtype("seq_parallel_communication_data_type", "fp32"),
    boolean("prescale_gradients", False),
    number("gradient_predivide_factor", 1.0, above=0),
    text("gradient_allreduce_op", "mean", choices=("mean", "sum"), caseless=True, added="0.19.6"),
    number("gradient_clipping", 1.0, minimum=0, earlier_default=("0.19.6", 0.0)),
    boolean("zero_allow_untested_optimizer", False),
    boolean("zero_force_ds_cpu_optimizer", True),
    boolean("wall_clock_breakdown", False),
    boolean("memory_breakdown", False),
    boolean("use_data_before_expert_parallelism", False),
    boolean("dataloader_drop_last", False),
    text("log_level", None, choices=("debug", "info", "warning", "error", "critical"), added="0.19.6"),
    anything("datastates_ckpt", False, added="0.18.2"),
    integer("vocabulary_size", None, optional=True),
    integer("sequence_parallel_size", None, minimum=1, added="0.18.2"),
    integer("allgather_size", 500_000_000, minimum=0),
    ZERO,
    FP16,
    BF16,
    BFLOAT16,
    TORCH_AUTOCAST,
    DATA_TYPES,
    plain("optimizer", text("type", None), plain("params", free=True, optional=True), boolean("legacy_fusion", False)),
    plain("scheduler", text("type", None), plain("params", free=True, optional=True)),
    *SERVICES,
    anything("inference"),
    *(removed(plain(name, free=True, optional=True), release) for name, release in _REMOVED.items()),
    boolean("sparse_gradients", False, removed="0.19.8"),
)
