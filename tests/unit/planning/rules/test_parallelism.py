"""Hosts and tensor parallelism: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

import pytest

from orchestrator.planning.cluster_spec import Host
from tests.unit.planning.configurations import gpu_cluster, plan_of, run_config
from tests.unit.planning.rules.broken import ERROR, INFO, TP, WARNING, Broken, check, each, tensor

CASES = [
    Broken(
        "tensor-attention-heads",
        ERROR,
        "model.num_attention_heads",
        tensor(2, model__hidden_size=448, model__num_attention_heads=7, model__num_key_value_heads=7),
        ("7 query heads", "tensor_parallel_size=2"),
        (f"{TP}=1",),
    ),
    Broken(
        "tensor-key-value-heads",
        ERROR,
        "model.num_key_value_heads",
        tensor(4, model__hidden_size=768, model__num_attention_heads=12, model__num_key_value_heads=6),
        ("6 key and value heads",),
        (f"{TP}=2",),
    ),
    Broken(
        "tensor-key-value-heads",
        INFO,
        "model.num_key_value_heads",
        tensor(8, model__num_key_value_heads=2),
        ("copied to 4 ranks",),
    ),
    Broken(
        "sequence-parallel",
        ERROR,
        "parallelism.sequence_parallel",
        {"parallelism__sequence_parallel": True},
        ("tensor_parallel_size=1",),
        ("parallelism.sequence_parallel=false",),
    ),
    Broken(
        "sequence-parallel",
        ERROR,
        "data.sequence_length",
        tensor(8, parallelism__sequence_parallel=True, data__sequence_length=1020),
        ("1020", "tensor_parallel_size=8"),
        ("data.sequence_length=1016",),
    ),
    Broken(
        "tensor-intermediate-size",
        ERROR,
        "model.intermediate_size",
        tensor(8, model__intermediate_size=2820),
        ("2820",),
        (f"{TP}=4",),
    ),
    Broken("tensor-vocabulary", INFO, "model.vocab_size", tensor(8, model__vocab_size=50257), ("7 are added",)),
    Broken(
        "tensor-hosts",
        WARNING,
        TP,
        tensor(16, cluster=gpu_cluster(hosts=2), model__num_key_value_heads=16),
        ("16 ranks", "8 devices"),
        (f"{TP}=8",),
    ),
    Broken(
        "tensor-hosts",
        WARNING,
        TP,
        tensor(4, model__num_key_value_heads=16),
        ("4 ranks", "6 devices"),
        (f"{TP}=2",),
        {"hosts": [Host(name="a", slots=6), Host(name="b", slots=6)]},
    ),
    Broken(
        "mixed-slots",
        WARNING,
        "cluster.hostfile",
        {},
        ("4, 8",),
        (),
        {"hosts": [Host(name="a", slots=8), Host(name="b", slots=4)]},
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


def test_tensor_parallelism_goes_with_every_zero_stage():
    for stage in range(4):
        assert plan_of(run_config(**tensor(2, zero__stage=stage, parallelism__sequence_parallel=True))).findings == ()


@pytest.mark.parametrize(
    ("heads", "key_value_heads", "tp", "told"),
    [
        (28, 28, 8, "legal are 1, 2, 4, 7, 14, 28; inside a host 1, 2, 4"),
        (40, 10, 4, "legal are 1, 2, 5, 10; inside a host 1, 2"),
    ],
)
def test_the_sizes_that_would_do_are_listed(heads, key_value_heads, tp, told):
    shape = {"hidden_size": heads * 64, "num_attention_heads": heads, "num_key_value_heads": key_value_heads}
    config = run_config(**tensor(tp, **{f"model__{name}": value for name, value in shape.items()}))
    assert any(told in finding.fix for finding in plan_of(config).findings)
