"""Optimizers and schedulers by name, and the parameters each takes."""

from __future__ import annotations

from orchestrator.deepspeed_config.keys.entry import Block, Key, Kind, anything, boolean, integer, number, plain, text

_LR = Key(name="lr", kind=Kind.number, default=1e-3, minimum=0)
_BETAS = Key(name="betas", kind=Kind.items, default=(0.9, 0.999))
_EPS = number("eps", 1e-8, minimum=0)
_DECAY = number("weight_decay", 0.0, minimum=0)
_ADAM = (
    _LR,
    _BETAS,
    _EPS,
    _DECAY,
    boolean("bias_correction", True),
    boolean("amsgrad", False),
    boolean("set_grad_none", True),
    boolean("torch_adam", False),
    boolean("adam_w_mode", True),
    boolean("fp32_optimizer_states", True),
    boolean("fused", None, optional=True),
    boolean("foreach", None, optional=True),
)
_LION = (_LR, _BETAS, _DECAY, boolean("set_grad_none", True))
_LAMB = (
    _LR,
    _BETAS,
    _EPS,
    _DECAY,
    boolean("bias_correction", True),
    boolean("eps_inside_sqrt", False),
    number("max_coeff", 10.0),
    number("min_coeff", 0.01),
    boolean("amsgrad", False),
)
_ADAGRAD = (
    _LR,
    _EPS,
    _DECAY,
    number("lr_decay", 0.0),
    number("initial_accumulator_value", 0.0),
    boolean("amsgrad", False),
    boolean("fp32_optimizer_states", True),
)
_MUON = (
    _LR,
    number("muon_lr", None, minimum=0),
    number("adam_lr", None, minimum=0),
    number("momentum", 0.95),
    _BETAS,
    _EPS,
    _DECAY,
    anything("ns_method"),
    boolean("torch_adam", False),
    boolean("adam_w_mode", True),
    boolean("fp32_optimizer_states", True),
)

DEEPSPEED_OPTIMIZERS: dict[str, Block] = {
    "adam": plain("params", *_ADAM),
    "adamw": plain("params", *_ADAM),
    "lamb": plain("params", *_LAMB),
    "lion": plain("params", *_LION),
    "adagrad": plain("params", *_ADAGRAD),
    "muon": plain("params", *_MUON),
    "muadam": plain("params", free=True),
    "muadamw": plain("params", free=True),
    "musgd": plain("params", free=True),
}
"""DeepSpeed's own optimizers by their names, whose case does not matter."""

ONE_BIT_OPTIMIZERS = ("onebitadam", "onebitlamb", "zerooneadam")
"""Optimizers with compressed communication; DeepSpeed 0.19.8 has none of them."""
ONE_BIT_REMOVED = "0.19.8"

TORCH_OPTIMIZERS = (
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "SparseAdam",
)
"""Classes of ``torch.optim``, in their exact case."""

ZERO_OPTIMIZERS = ("adam", "adamw", "lion", "adagrad", "muon")
"""DeepSpeed's names of the optimizers ZeRO takes without ``zero_allow_untested_optimizer``."""

_WARMUP = (
    number("warmup_min_lr", 0.0, minimum=0),
    number("warmup_max_lr", 1e-3, minimum=0),
    integer("warmup_num_steps", 1000, minimum=1),
    text("warmup_type", "log", choices=("log", "linear")),
    integer("last_batch_iteration", -1),
)
SCHEDULERS: dict[str, Block] = {
    "WarmupLR": plain("params", *_WARMUP),
    "WarmupDecayLR": plain("params", integer("total_num_steps", None, minimum=1), *_WARMUP),
    "WarmupCosineLR": plain(
        "params",
        integer("total_num_steps", None, minimum=1),
        number("warmup_min_ratio", 0.0, minimum=0),
        integer("warmup_num_steps", 1000, minimum=1),
        number("cos_min_ratio", 0.0001, minimum=0),
        text("warmup_type", "log", choices=("log", "linear")),
        integer("last_batch_iteration", -1),
    ),
    "OneCycle": plain(
        "params",
        number("cycle_min_lr", None, minimum=0),
        number("cycle_max_lr", None, minimum=0),
        number("decay_lr_rate", 0.0),
        integer("cycle_first_step_size", 2000, minimum=1),
        integer("cycle_second_step_size", None, optional=True, minimum=0),
        integer("cycle_first_stair_count", 0),
        integer("cycle_second_stair_count", None, optional=True),
        integer("decay_step_size", 0),
        boolean("cycle_momentum", True),
        number("cycle_min_mom", 0.8),
        number("cycle_max_mom", 0.9),
        number("decay_mom_rate", 0.0),
        integer("last_batch_iteration", -1),
    ),
    "LRRangeTest": plain(
        "params",
        number("lr_range_test_min_lr", 1e-3, minimum=0),
        integer("lr_range_test_step_size", 2000, minimum=1),
        number("lr_range_test_step_rate", 1.0),
        boolean("lr_range_test_staircase", False),
        integer("last_batch_iteration", -1),
    ),
}
"""DeepSpeed's own schedulers."""

SCHEDULER_NEEDS = {
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
}
"""Parameters without which a scheduler cannot be made."""

TORCH_SCHEDULERS = (
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
)
"""Classes of ``torch.optim.lr_scheduler``."""
