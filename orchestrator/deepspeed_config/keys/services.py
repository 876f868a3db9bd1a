"""Blocks that watch, save, compile or feed a run: monitors, profilers, checkpoints, pipeline, tensor parallelism, data."""

from __future__ import annotations

from orchestrator.deepspeed_config.keys.entry import (
    Block,
    Key,
    Kind,
    anything,
    boolean,
    integer,
    model,
    number,
    plain,
    text,
    texts,
)

_UNUSED_BY_PIPELINE = "the pipeline is cut by the arguments of PipelineModule, never by this key"

TENSORBOARD = model("tensorboard", boolean("enabled", False), text("output_path", ""), text("job_name", "DeepSpeedJobName"))
CSV_MONITOR = model("csv_monitor", boolean("enabled", False), text("output_path", ""), text("job_name", "DeepSpeedJobName"))
WANDB = model("wandb", boolean("enabled", False), text("group", None), text("team", None), text("project", "deepspeed"))
COMET = model(
    "comet",
    boolean("enabled", False),
    integer("samples_log_interval", 100),
    text("project", None),
    text("workspace", None),
    text("api_key", None),
    text("experiment_name", None),
    text("experiment_key", None),
    boolean("online", None, optional=True),
    text("mode", None),
)
MONITORS = (TENSORBOARD, WANDB, CSV_MONITOR, COMET)

COMMS_LOGGER = model(
    "comms_logger",
    boolean("enabled", False),
    boolean("prof_all", True),
    Key(name="prof_ops", kind=Kind.items, default=()),
    boolean("verbose", False),
    boolean("debug", False),
)
FLOPS_PROFILER = plain(
    "flops_profiler",
    boolean("enabled", False),
    number("recompute_fwd_factor", 0.0),
    integer("profile_step", 1),
    integer("module_depth", -1),
    integer("top_modules", 1),
    boolean("detailed", True),
    text("output_file", None),
)
TIMERS = plain("timers", model("throughput", boolean("enabled", True), boolean("synchronized", True)))

AUTOTUNING = plain(
    "autotuning",
    boolean("enabled", False),
    boolean("fast", True),
    text("results_dir", "autotuning_results"),
    text("exps_dir", "autotuning_exps"),
    boolean("overwrite", True),
    integer("start_profile_step", 3),
    integer("end_profile_step", 5),
    text("metric", "throughput", choices=("latency", "throughput", "flops", "forward", "step")),
    text("metric_path", None),
    text("tuner_type", "gridsearch", choices=("gridsearch", "random", "model_based")),
    integer("tuner_early_stopping", 5),
    integer("tuner_num_trials", 50),
    Key(name="arg_mappings", kind=Kind.mapping, default=None, optional=True),
    plain(
        "model_info",
        boolean("profile", False),
        integer("num_params", None, optional=True),
        integer("hidden_size", None, optional=True),
        integer("num_layers", None, optional=True),
        optional=True,
    ),
    text("model_info_path", None),
    integer("mp_size", 1),
    integer("max_train_batch_size", None, optional=True),
    integer("min_train_batch_size", 1),
    integer("max_train_micro_batch_size_per_gpu", 1024),
    integer("min_train_micro_batch_size_per_gpu", 1),
    integer("num_tuning_micro_batch_sizes", 3),
)

CHECKPOINT = plain(
    "checkpoint",
    text("tag_validation", "WARN", choices=("WARN", "IGNORE", "FAIL"), caseless=True),
    boolean("load_universal", False),
    boolean("use_node_local_storage", False),
    plain("parallel_write", boolean("pipeline_stage", False)),
    boolean("checkpoint_serialization", True, added="0.18.2"),
    plain(
        "writer",
        text("type", "FAST", choices=("MOCK", "PYTHON", "FAST"), caseless=True, optional=True),
        integer("io_buffer_size", 64 * 1024**2),
        boolean("io_buffer_double", True),
        boolean("show_statistics", False),
        text("data_parallel", None, choices=("REPLICA", "SOCKET", "MACHINE"), caseless=True),
        boolean("decoupled", False),
        integer("io_multiplier", 1),
        optional=True,
        added="0.18.2",
    ),
)

COMPILE = model(
    "compile",
    boolean("deepcompile", False),
    boolean("autoep_non_moe", False, added="0.19.8"),
    boolean("free_activation", False),
    integer("free_activation_threshold", 10 * 1024**2, added="0.18.2"),
    boolean("offload_activation", False),
    boolean("offload_activation_pin_memory", True, added="0.19.6"),
    boolean("offload_opt_states", False),
    boolean("double_buffer", True),
    boolean("symmetric_memory", False),
    boolean("debug_log", False),
    boolean("offload_parameters", False),
    boolean("sync_before_reduce", False),
    boolean("sync_after_reduce", False),
    boolean("sync_before_allgather", False),
    boolean("sync_after_allgather", False),
    boolean("keep_int_input_tensors", True, added="0.18.2"),
    boolean("keep_all_input_tensors", False, added="0.18.2"),
    texts("passes", None, optional=True, choices=("z1", "z3", "autosp", "autotp"), added="0.19.6"),
)

HYBRID_ENGINE = model(
    "hybrid_engine",
    boolean("enabled", False),
    integer("max_out_tokens", 512, minimum=1),
    integer("inference_tp_size", 1),
    boolean("release_inference_cache", False),
    boolean("pin_parameters", True),
    integer("tp_gather_partition_size", 8),
    boolean("enable_cuda_graph", False, added="0.19.6"),
)

TENSOR_PARALLEL = model(
    "tensor_parallel",
    Key(name="dtype", kind=Kind.nothing, default="fp16"),
    integer("autotp_size", 0, minimum=None),
    boolean("tp_overlap_comm", False),
    boolean("vocab_parallel_lm_head", None, optional=True, added="0.19.8"),
    text("vocab_parallel_ce_backend", "torch", choices=("torch", "liger"), added="0.19.8"),
    model(
        "tensor_parallel",
        integer("tp_size", 1),
        integer("tp_grain_size", 1),
        anything("mpu"),
        anything("tp_group"),
        alias="tp",
    ),
    Key(name="injection_policy_tuple", kind=Kind.items, default=None, optional=True),
    Key(name="partition_config", kind=Kind.mapping, default=None, optional=True, added="0.19.6"),
    text("preset_model", None, added="0.19.6"),
    boolean("keep_module_on_host", False),
    boolean("replace_with_kernel_inject", False, alias="kernel_inject"),
)

_EXPERT_DEFAULTS = {
    "enabled": False,
    "autoep_size": 1,
    "expert_tensor_parallel_size": 1,
    "validate_folding_routing": False,
    "async_split_plan": False,
    "preset_model": None,
    "moe_layer_pattern": None,
    "expert_pattern": None,
    "router_pattern": None,
    "use_grouped_mm": True,
    "disable_triton_grouped_mm": False,
    "route_norm": None,
    "route_scale": 1.0,
    "score_apply": "auto",
    "combine_impl": "auto",
    "row_weighting_impl": "auto",
    "gate_up_impl": "separate",
    "comm_backend": "comm",
    "comm_num_sm": 12,
    "comm_qp_margin": 4,
    "comm_max_tokens_per_rank": 0,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "score_func": "auto",
    "top_k": "auto",
    "load_balance_coeff": None,
    "routed_scaling_factor": "auto",
    "expert_w1": None,
    "expert_w2": None,
    "expert_w3": None,
    "num_experts_attr": None,
    "top_k_attr": None,
    "has_shared_experts": None,
    "shared_experts_pattern": None,
    "shared_experts_gate_pattern": None,
    "expert_activation": None,
}
EXPERT_PARALLEL = plain(
    "expert_parallel",
    *(anything(name, default, takes_auto=True) for name, default in _EXPERT_DEFAULTS.items()),
    optional=True,
    added="0.19.6",
)

PIPELINE = plain(
    "pipeline",
    anything("stages", "auto", takes_auto=True, unused=_UNUSED_BY_PIPELINE),
    anything("partition", "best", unused=_UNUSED_BY_PIPELINE),
    boolean("seed_layers", False, unused="seeding is an argument of PipelineModule, never this key"),
    integer("activation_checkpoint_interval", 0, minimum=0),
    boolean("pipe_partitioned", True),
    boolean("grad_partitioned", True),
    boolean("use_reentrant", None, optional=True),
)

ACTIVATION_CHECKPOINTING = plain(
    "activation_checkpointing",
    boolean("partition_activations", False),
    integer("number_checkpoints", None, optional=True),
    boolean("contiguous_memory_optimization", False),
    boolean("synchronize_checkpoint_boundary", False),
    boolean("profile", False),
    boolean("cpu_checkpointing", False),
)

AIO = plain(
    "aio",
    integer("block_size", 1_048_576, minimum=1),
    integer("queue_depth", 8, minimum=1),
    integer("intra_op_parallelism", 1, minimum=1),
    boolean("single_submit", False),
    boolean("overlap_events", True),
    boolean("use_gds", False),
    optional=True,
)

WEIGHT_QUANTIZATION = model(
    "weight_quantization",
    boolean("enabled", True),
    integer("num_bits", 8),
    text("q_type", "symmetric", choices=("symmetric", "asymmetric")),
    integer("q_groups", 1),
    Key(name="quantized_initialization", kind=Kind.mapping, default={}),
    Key(name="post_init_quant", kind=Kind.mapping, default={}),
)

_CURRICULUM = plain("curriculum_learning", boolean("enabled", False), free=True)
_DYNAMIC_BATCHING = plain(
    "dynamic_batching",
    boolean("enabled", False),
    text("metrics_path", None),
    text("lr_scaling_method", "linear", choices=("linear", "sqrt", "none")),
    integer("min_batch_size", 1),
    integer("max_batch_size", None),
    text("sequence_picking_order", "dataloader", choices=("random", "seqlen", "dataloader")),
    integer("max_tokens", None),
    boolean("verbose", False),
)
DATA_EFFICIENCY = plain(
    "data_efficiency",
    boolean("enabled", False),
    integer("seed", 1234),
    plain(
        "data_sampling",
        boolean("enabled", False),
        integer("num_epochs", 1000),
        integer("num_workers", 0),
        boolean("pin_memory", False),
        _CURRICULUM,
        _DYNAMIC_BATCHING,
    ),
    plain("data_routing", boolean("enabled", False), plain("random_ltd", boolean("enabled", False), free=True)),
)

SERVICES: tuple[Block, ...] = (
    *MONITORS,
    COMMS_LOGGER,
    FLOPS_PROFILER,
    TIMERS,
    AUTOTUNING,
    CHECKPOINT,
    COMPILE,
    HYBRID_ENGINE,
    TENSOR_PARALLEL,
    EXPERT_PARALLEL,
    PIPELINE,
    ACTIVATION_CHECKPOINTING,
    AIO,
    WEIGHT_QUANTIZATION,
    DATA_EFFICIENCY,
)
