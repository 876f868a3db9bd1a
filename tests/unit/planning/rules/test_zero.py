"""ZeRO and offload: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from orchestrator.config.enums import OffloadDevice
from tests.unit.planning.configurations import gpu_cluster
from tests.unit.planning.rules.broken import ERROR, INFO, WARNING, Broken, check, each, pipeline

NVME, CPU = OffloadDevice.nvme, OffloadDevice.cpu

CASES = [
    Broken(
        "offload-ratio",
        ERROR,
        "offload.optimizer_ratio",
        {"zero__stage": 2, "offload__optimizer_device": CPU, "offload__optimizer_ratio": 0.5},
        ("0.5", "2 and cpu"),
        ("offload.optimizer_ratio=1",),
    ),
    Broken(
        "offload-ratio-groups",
        WARNING,
        "offload.optimizer_ratio",
        {"zero__stage": 3, "offload__optimizer_device": CPU, "offload__optimizer_ratio": 0.9},
        ("0.9 of 2 sub-groups", "nothing stays"),
        ("zero.sub_group_size=1986824",),
    ),
    Broken(
        "nvme-live-parameters",
        ERROR,
        "zero.stage3_max_live_parameters",
        {
            "cluster": gpu_cluster(devices_per_host=1),
            "zero__stage": 3,
            "zero__stage3_prefetch_bucket_size": 0,
            "offload__param_device": NVME,
            "offload__param_max_in_cpu": 0,
            "offload__nvme_path": "/disk",
        },
        ("1000000000 elements may stay gathered", "param_buffer_count=5"),
        ("zero.stage3_max_live_parameters=0",),
    ),
    Broken(
        "nvme-prefetch",
        ERROR,
        "zero.stage3_prefetch_bucket_size",
        {"zero__stage": 3, "offload__param_device": NVME, "offload__nvme_path": "/nvme"},
        ("fetched ahead", "second step"),
        ("zero.stage3_prefetch_bucket_size=0",),
    ),
    Broken(
        "zero-single-rank",
        INFO,
        "zero.stage",
        {"cluster": gpu_cluster(devices_per_host=1)},
        ("stage 1", "one data-parallel rank"),
    ),
    Broken(
        "zero-single-rank",
        WARNING,
        "zero.stage",
        {"cluster": gpu_cluster(devices_per_host=1), "zero__stage": 3},
        ("stage 3",),
        ("zero.stage=1",),
    ),
    Broken(
        "zero-allgather-bucket",
        ERROR,
        "zero.allgather_bucket_size",
        {"zero__allgather_bucket_size": 1001},
        ("1001",),
        ("zero.allgather_bucket_size=1002",),
    ),
    Broken(
        "zero-round-robin",
        INFO,
        "zero.round_robin_gradients",
        {"zero__round_robin_gradients": True},
        (),
        ("zero.round_robin_gradients=false",),
    ),
    Broken(
        "offload-optimizer-stage",
        ERROR,
        "offload.optimizer_device",
        {"zero__stage": 0, "offload__optimizer_device": CPU},
        ("cpu", "zero.stage=0"),
        ("zero.stage=1",),
    ),
    Broken(
        "offload-param-stage",
        ERROR,
        "offload.param_device",
        {"zero__stage": 2, "offload__param_device": CPU},
        ("cpu", "zero.stage=2"),
        ("zero.stage=3",),
    ),
    Broken(
        "nvme-stage",
        ERROR,
        "offload.optimizer_device",
        {"zero__stage": 2, "offload__optimizer_device": NVME, "offload__nvme_path": "/disk"},
        ("nvme", "zero.stage=2"),
        ("zero.stage=3",),
    ),
    Broken(
        "nvme-path",
        ERROR,
        "offload.nvme_path",
        {"zero__stage": 3, "offload__optimizer_device": NVME, "offload__param_device": NVME},
        ("offload.optimizer_device", "offload.param_device"),
        ("offload.nvme_path=/a/folder/on/a/local/nvme/disk",),
    ),
    Broken("nvme-path", INFO, "offload.nvme_path", {"offload__nvme_path": "/disk"}, (), ("offload.nvme_path=null",)),
    Broken(
        "nvme-param-buffer",
        ERROR,
        "offload.param_buffer_size",
        {
            "zero__stage": 3,
            "offload__param_device": NVME,
            "offload__nvme_path": "/disk",
            "offload__param_buffer_size": 1_000_000,
        },
        ("4096000", "1000000"),
        ("offload.param_buffer_size=4096000",),
    ),
    Broken(
        "zero-single-rank",
        WARNING,
        "zero.stage",
        pipeline(8),
        ("one data-parallel rank", "take all 8 devices"),
    ),
    Broken(
        "zero-persistence",
        WARNING,
        "zero.stage3_param_persistence_threshold",
        {"zero__stage": 3, "zero__stage3_param_persistence_threshold": 32_768_000},
        ("the largest has 32768000 elements", "shards none"),
        ("zero.stage3_param_persistence_threshold=100000",),
    ),
    Broken(
        "zero-sub-groups",
        WARNING,
        "zero.sub_group_size",
        {"zero__stage": 3, "zero__sub_group_size": 1000},
        ("1000 cuts", "sub-groups"),
        ("zero.sub_group_size=1986824",),
    ),
    Broken(
        "nvme-params-stay",
        WARNING,
        "offload.param_max_in_cpu",
        {
            "zero__stage": 3,
            "zero__stage3_prefetch_bucket_size": 0,
            "offload__param_device": NVME,
            "offload__nvme_path": "/disk",
        },
        ("1000000000 elements stay", "no parameter goes to the disk"),
        ("offload.param_max_in_cpu=0",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)
