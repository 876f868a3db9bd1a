"""Smallest and largest sensible value of every numeric option that has no rule of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from orchestrator.findings import Finding, Severity, error
from orchestrator.planning.rules.registry import RuleContext, rule

_HUGE = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An interval of legal values. ``above`` and ``below`` exclude their value, ``least`` and ``most`` include it."""

    least: float | None = None
    above: float | None = None
    most: float = _HUGE
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies in it; NaN and infinity never do."""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and value <= self.most
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        low = f"at least {_plain(self.least)}" if self.least is not None else f"above {_plain(self.above or 0)}"
        if self.below is not None:
            return f"{low} and below {_plain(self.below)}"
        return f"{low} and at most {_plain(self.most)}"


NOT_NEGATIVE = Range(least=0)
POSITIVE = Range(above=0)
AT_LEAST_ONE = Range(least=1)
PROBABILITY = Range(least=0, below=1)
SHARE_OF_RATE = Range(above=0, most=2)
"""Of a label, which clocks above the rated one and reductions in a switch can exceed."""

RANGES: dict[str, Range] = {
    "seed": Range(least=0, most=2**32 - 1),
    "cluster.bf16_tflops": POSITIVE,
    "cluster.fp16_tflops": POSITIVE,
    "cluster.fp32_tflops": POSITIVE,
    "cluster.memory_bandwidth_gbps": POSITIVE,
    "cluster.device_link_gbps": POSITIVE,
    "cluster.host_link_gbps": POSITIVE,
    "cluster.network_gbps": POSITIVE,
    "cluster.speed.matmul_efficiency": SHARE_OF_RATE,
    "cluster.speed.memory_efficiency": SHARE_OF_RATE,
    "cluster.speed.launch_us": NOT_NEGATIVE,
    "cluster.speed.link_efficiency": SHARE_OF_RATE,
    "cluster.speed.all_reduce_efficiency": SHARE_OF_RATE,
    "cluster.speed.link_latency_us": NOT_NEGATIVE,
    "cluster.speed.network_efficiency": SHARE_OF_RATE,
    "cluster.speed.zero3_network_efficiency": SHARE_OF_RATE,
    "cluster.speed.network_latency_us": NOT_NEGATIVE,
    "cluster.speed.host_link_efficiency": SHARE_OF_RATE,
    "cluster.speed.host_adam_gparams": POSITIVE,
    "cluster.speed.nvme_read_gbps": POSITIVE,
    "cluster.speed.nvme_write_gbps": POSITIVE,
    "cluster.speed.step_overhead_ms": NOT_NEGATIVE,
    "zero.stage": Range(least=0, most=3),
    "zero.reduce_bucket_size": AT_LEAST_ONE,
    "zero.allgather_bucket_size": Range(least=2),
    "zero.sub_group_size": AT_LEAST_ONE,
    "zero.stage3_prefetch_bucket_size": NOT_NEGATIVE,
    "zero.stage3_param_persistence_threshold": NOT_NEGATIVE,
    "zero.stage3_max_live_parameters": NOT_NEGATIVE,
    "zero.stage3_max_reuse_distance": NOT_NEGATIVE,
    "offload.optimizer_ratio": Range(above=0, most=1),
    "offload.optimizer_buffer_count": Range(least=4, most=1024),
    "offload.param_buffer_count": Range(least=1, most=1024),
    "offload.param_buffer_size": AT_LEAST_ONE,
    "offload.param_max_in_cpu": NOT_NEGATIVE,
    "precision.loss_scale": NOT_NEGATIVE,
    "precision.initial_scale_power": Range(least=0, most=32),
    "precision.loss_scale_window": AT_LEAST_ONE,
    "precision.hysteresis": AT_LEAST_ONE,
    "precision.min_loss_scale": AT_LEAST_ONE,
    "activation_checkpointing.interval": AT_LEAST_ONE,
    "optimizer.lr": NOT_NEGATIVE,
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.momentum": PROBABILITY,
    "optimizer.adam_lr": NOT_NEGATIVE,
    "lr_scheduler.warmup_steps": NOT_NEGATIVE,
    "lr_scheduler.min_lr": NOT_NEGATIVE,
    "lr_scheduler.decay_steps": AT_LEAST_ONE,
    "communication.gradient_predivide_factor": POSITIVE,
    "communication.timeout_minutes": Range(above=0, most=1e6),
    "data.tokenizer_vocab_size": Range(least=257),
    "data.max_bytes": AT_LEAST_ONE,
    "data.sequence_length": Range(least=2, most=10**9),
    "data.held_out_fraction": PROBABILITY,
    "data.synthetic_tokens": AT_LEAST_ONE,
    "data.ignore_fraction": PROBABILITY,
    "training.max_steps": AT_LEAST_ONE,
    "training.gradient_clipping": NOT_NEGATIVE,
    "training.label_smoothing": PROBABILITY,
    "training.evaluate_every": NOT_NEGATIVE,
    "training.evaluate_sequences": AT_LEAST_ONE,
    "training.log_every": AT_LEAST_ONE,
    "checkpoint.save_every": NOT_NEGATIVE,
    "checkpoint.keep": NOT_NEGATIVE,
    "tracking.system_metrics_seconds": NOT_NEGATIVE,
    "tracking.init_timeout_seconds": Range(above=0, most=1e6),
    "tracking.finish_timeout_seconds": Range(above=0, most=1e6),
    "launcher.master_port": Range(least=1, most=65535),
    "launcher.connect_seconds": Range(least=1, most=1e6),
    "launcher.hang_timeout": Range(least=0, most=1e9),
    "launcher.stop_seconds": Range(least=0, most=1e6),
    "preflight.timeout": Range(least=1, most=1e6),
    "preflight.parallel": Range(least=1, most=10_000),
    "planner.memory_margin": Range(least=0, most=0.5),
    "planner.tokens": AT_LEAST_ONE,
}
"""Range of each option; options that are null are not checked. The sizes of the axes, the batch and the hosts are checked
where they are used, those of the model where it is made."""


@rule("value-range", "every number lies in the range in which it means something", Severity.error, concerns_memory=True)
def value_range(context: RuleContext) -> Iterator[Finding]:
    """Hold every option of the table against its range."""
    for field, legal in RANGES.items():
        value = attrgetter(field)(context.config)
        if value is not None and not legal.holds(value):
            yield error("value-range", field, f"{value} is not {legal}", f"set {field}={_nearest(value, legal)}")


@rule("optimizer-betas", "Adam has two decay rates, each at least 0 and below 1", Severity.error)
def optimizer_betas(context: RuleContext) -> Iterator[Finding]:
    """The betas of Adam."""
    betas = context.config.optimizer.betas
    if len(betas) != 2 or not all(PROBABILITY.holds(beta) for beta in betas):
        yield error(
            "optimizer-betas",
            "optimizer.betas",
            f"{list(betas)} is not a pair of numbers of at least 0 and below 1",
            "set optimizer.betas=[0.9,0.95]",
        )


def _nearest(value: float, legal: Range) -> str:
    """The legal value closest to ``value``, or a description where the bound itself is excluded."""
    low = legal.least if legal.least is not None else legal.above
    if not math.isfinite(value) or low is None or value <= low:
        return _plain(legal.least) if legal.least is not None else f"a number above {_plain(legal.above or 0)}"
    return f"a number below {_plain(legal.below)}" if legal.below is not None else _plain(legal.most)


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
