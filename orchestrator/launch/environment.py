"""Which variables of this process the workers of other hosts get as well."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestrator.config.enums import Accelerator
from orchestrator.config.schema import RunConfig
from orchestrator.config.secret_names import is_secret_name
from orchestrator.launch.machine import scripts_dir
from orchestrator.planning.cluster_spec import ClusterSpec

_SENT = ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "CUDA_DEVICE_ORDER")
_SENT_PREFIXES = ("NCCL_", "GLOO_", "UCX_", "RCCL_", "HF_", "WANDB_", "TORCH_", "PYTORCH_", "TRITON_", "DS_", "DEEPSPEED_")
_PRIVATE = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""They may hold a password."""


def worker_environment(config: RunConfig, cluster: ClusterSpec) -> dict[str, str]:
    """What every worker gets: of the configuration, and what its accelerator needs."""
    # torch's extension builder looks for ninja on PATH, and an environment that is not activated has it elsewhere
    environment = {"PATH": f"{scripts_dir()}:{os.environ.get('PATH', os.defpath)}"}
    if config.cluster.accelerator is Accelerator.cpu:
        threads = max(1, len(os.sched_getaffinity(0)) // max(host.slots for host in cluster.hosts))
        environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    return environment | config.launcher.environment


def sent_variables() -> dict[str, str]:
    """Variables of this process that change what workers do; all hosts must have the same. None of them is private."""
    return {
        name: value
        for name, value in os.environ.items()
        if (name in _SENT or name.startswith(_SENT_PREFIXES)) and not is_secret_name(name)
    }


def private_variables() -> Mapping[str, str]:
    """Variables of this process that workers need and that nobody may read: in no file, log or command line."""
    return {name: value for name, value in os.environ.items() if is_secret_name(name) or name.lower() in _PRIVATE}
