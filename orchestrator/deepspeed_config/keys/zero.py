"""The ``zero_optimization`` block."""

from __future__ import annotations

import sys

from orchestrator.deepspeed_config.keys.entry import anything, boolean, integer, model, number, text, texts

DEVICES = ("none", "cpu", "nvme")
_PINNED = ("0.19.6", False)
_LEAF_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)

OFFLOAD_PARAM = model(
    "offload_param",
    text("device", "none", choices=DEVICES),
    text("nvme_path", None),
    integer("buffer_count", 5, minimum=0),
    integer("buffer_size", 100_000_000, minimum=0),
    integer("max_in_cpu", 1_000_000_000, minimum=0),
    boolean("pin_memory", True, earlier_default=_PINNED),
    optional=True,
)

OFFLOAD_OPTIMIZER = model(
    "offload_optimizer",
    text("device", "none", choices=DEVICES),
    text("nvme_path", None),
    integer("buffer_count", 4, minimum=0),
    boolean("pin_memory", True, earlier_default=_PINNED),
    boolean("pipeline_read", False),
    boolean("pipeline_write", False),
    boolean("fast_init", False),
    number("ratio", 1.0, minimum=0, maximum=1),
    boolean("super_offload", False, added="0.18.2"),
    number("cpuadam_cores_perc", 0.8, minimum=0, maximum=1, added="0.18.2"),
    optional=True,
)

ZENFLOW = model(
    "zenflow",
    number("topk_ratio", 0.1, above=0, below=1),
    text("select_strategy", "auto", choices=("auto", "step", "epoch"), takes_auto=True),
    integer("select_interval", None, takes_auto=True),
    integer("update_interval", None, minimum=1, takes_auto=True),
    boolean("overlap_step", False),
    boolean("offload", False),
    number("auto_ratio", 0.99, minimum=0, maximum=1),
    integer("full_warm_up_rounds", 0),
    number("pt_reserved_cores_perc", 0.5, minimum=0, maximum=1),
    integer("steps_per_epoch", None, optional=True),
    optional=True,
    added="0.18.2",
)

LEAF_MODULE = model(
    "leaf_module",
    texts("classes", _LEAF_CLASSES),
    texts("names", ()),
    texts("name_suffixes", ()),
    optional=True,
    added="0.18.2",
)

ZERO = model(
    "zero_optimization",
    integer("stage", 0, choices=(0, 1, 2, 3)),
    boolean("contiguous_gradients", True),
    boolean("reduce_scatter", True),
    integer("reduce_bucket_size", 500_000_000, minimum=1),
    boolean("use_multi_rank_bucket_allreduce", True),
    boolean("allgather_partitions", True),
    integer("allgather_bucket_size", 500_000_000, minimum=0),
    boolean("overlap_comm", None, optional=True),
    boolean("compute_grad_norm", True, added="0.19.7"),
    boolean("load_from_fp32_weights", True),
    boolean("elastic_checkpoint", False),
    OFFLOAD_PARAM,
    OFFLOAD_OPTIMIZER,
    ZENFLOW,
    integer("sub_group_size", 1_000_000_000, minimum=0),
    boolean("cpu_offload_param", None, optional=True, deprecated_for="offload_param"),
    boolean("cpu_offload_use_pin_memory", None, optional=True, deprecated_for="offload_param or offload_optimizer"),
    boolean("cpu_offload", None, optional=True, deprecated_for="offload_optimizer"),
    integer("stage3_prefetch_bucket_size", 50_000_000, minimum=0, alias="prefetch_bucket_size"),
    integer("stage3_param_persistence_threshold", 100_000, minimum=0, alias="param_persistence_threshold"),
    integer("stage3_model_persistence_threshold", sys.maxsize, minimum=0, alias="model_persistence_threshold"),
    integer("stage3_max_live_parameters", 1_000_000_000, minimum=0, alias="max_live_parameters"),
    integer("stage3_max_reuse_distance", 1_000_000_000, minimum=0, alias="max_reuse_distance"),
    boolean("stage3_gather_16bit_weights_on_model_save", False, alias="gather_16bit_weights_on_model_save"),
    integer("stage3_module_granularity_threshold", 0, alias="module_granularity_threshold"),
    boolean("stage3_use_all_reduce_for_fetch_params", False, alias="use_all_reduce_for_fetch_params"),
    boolean("stage3_allgather_sequential", False, alias="allgather_sequential", added="0.19.6"),
    boolean("stage3_gather_fp16_weights_on_model_save", False, deprecated_for="stage3_gather_16bit_weights_on_model_save"),
    boolean("ignore_unused_parameters", True),
    boolean("legacy_stage1", False),
    boolean("round_robin_gradients", False),
    boolean("parameter_alignment", False, added="0.19.7"),
    integer("zero_hpz_partition_size", 1, minimum=0),
    boolean("zero_quantized_weights", False),
    boolean("zero_quantized_nontrainable_weights", False),
    boolean("zero_quantized_gradients", False),
    boolean("memory_efficient_linear", True),
    boolean("pipeline_loading_checkpoint", False),
    boolean("override_module_apply", True),
    boolean("log_trace_cache_warnings", False),
    boolean("enable_sanity_checks", False, added="0.18.2"),
    boolean("save_muon_momentum_buffer_in_memory", False, added="0.19.6"),
    LEAF_MODULE,
    integer("mics_shard_size", -1, removed="0.19.7"),
    boolean("mics_hierarchical_params_gather", False, removed="0.19.7"),
    anything("zeropp_loco_param", None, removed="0.19.8"),
)
