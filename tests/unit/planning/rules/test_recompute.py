"""Activation recomputation: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from orchestrator.config.enums import RecomputePolicy
from tests.unit.planning.rules.broken import ERROR, INFO, WARNING, Broken, check, each, tensor


def recompute(policy, **options):
    return {"activation_checkpointing__policy": policy} | {
        f"activation_checkpointing__{name}": value for name, value in options.items()
    }


CASES = [
    Broken(
        "recompute-interval",
        INFO,
        "activation_checkpointing.interval",
        recompute(RecomputePolicy.full, interval=4),
        ("4", "policy=full"),
        ("activation_checkpointing.policy=every_k_layers",),
    ),
    Broken(
        "recompute-interval",
        WARNING,
        "activation_checkpointing.interval",
        recompute(RecomputePolicy.every_k_layers, interval=20),
        ("20 layers", "(16)"),
        ("activation_checkpointing.interval=4",),
    ),
    Broken(
        "recompute-partition",
        ERROR,
        "activation_checkpointing.partition_activations",
        tensor(2, **recompute(RecomputePolicy.selective, partition_activations=True)),
        ("policy=selective keeps none",),
        ("activation_checkpointing.policy=full",),
    ),
    Broken(
        "recompute-partition",
        ERROR,
        "activation_checkpointing.partition_activations",
        recompute(RecomputePolicy.full, partition_activations=True),
        ("tensor_parallel_size=1",),
        ("activation_checkpointing.partition_activations=false",),
    ),
    Broken(
        "recompute-partition",
        INFO,
        "activation_checkpointing.partition_activations",
        tensor(2, **recompute(RecomputePolicy.full, partition_activations=True), parallelism__sequence_parallel=True),
        ("no effect",),
        ("activation_checkpointing.partition_activations=false",),
    ),
    Broken(
        "recompute-host",
        ERROR,
        "activation_checkpointing.cpu_checkpointing",
        recompute(RecomputePolicy.none, cpu_checkpointing=True),
        ("policy=none keeps none",),
        ("activation_checkpointing.policy=full",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)
