"""How workers are started: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from tests.unit.planning.configurations import gpu_cluster, plan_of, run_config
from tests.unit.planning.rules.broken import ERROR, Broken, check, each

CASES = [
    Broken(
        "environment-name",
        ERROR,
        "launcher.environment.NCCL-DEBUG",
        {"launcher__environment": {"NCCL-DEBUG": "INFO"}},
        ("'NCCL-DEBUG'",),
    ),
    Broken(
        "environment-launcher",
        ERROR,
        "launcher.environment.CUDA_VISIBLE_DEVICES",
        {"launcher__environment": {"CUDA_VISIBLE_DEVICES": "0,1"}},
        ("'0,1'", "cluster.include"),
    ),
    Broken(
        "environment-value",
        ERROR,
        "launcher.environment.GREETING",
        {"launcher__environment": {"GREETING": "a; b"}, "cluster": gpu_cluster(hosts=2)},
        ("';'", "shells of other hosts"),
    ),
    Broken(
        "environment-value",
        ERROR,
        "launcher.environment.GREETING",
        {"launcher__environment": {"GREETING": "a\nb"}},
        ("'\\n'",),
    ),
    Broken(
        "master-address",
        ERROR,
        "launcher.master_addr",
        {"launcher__master_addr": "127.0.0.1", "cluster": gpu_cluster(hosts=2)},
        ("each of the 2 hosts",),
        ("launcher.master_addr=null",),
    ),
    Broken(
        "master-address",
        ERROR,
        "launcher.master_addr",
        {"launcher__master_addr": "node-a:29500"},
        ("neither a host name nor an address", "launcher.master_port"),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


def test_ordinary_variables_and_addresses_pass():
    sound = {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_0,mlx5_1", "HF_HOME": "/data/hf~1", "A": ""}
    for address in ("node-a.fabric", "10.0.0.1", "fe80::1"):
        config = run_config(launcher__environment=sound, launcher__master_addr=address, cluster=gpu_cluster(hosts=2))
        assert plan_of(config).findings == ()


def test_a_local_run_takes_any_text():
    assert plan_of(run_config(launcher__environment={"GREETING": "it's $HOME; yes"})).findings == ()
