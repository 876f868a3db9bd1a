"""DeepSpeed's compiled operators: which ones a run loads, and where torch's extension builder puts them."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.config.enums import Accelerator, OffloadDevice
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.settings import OptimizerImplementation, resolve_settings


def needed_operators(config: RunConfig) -> list[str]:
    """The operators that DeepSpeed loads for this run, and compiles when they are not there."""
    on_cpu = config.cluster.accelerator is Accelerator.cpu
    uses_nvme = OffloadDevice.nvme in (config.offload.optimizer_device, config.offload.param_device)
    needs = {
        "deepspeed_shm_comm": on_cpu,
        "async_io": uses_nvme,
    }
    settings = resolve_settings(config)
    implementation = settings.optimizer_implementation
    if implementation is OptimizerImplementation.muon:
        # what Muon leaves to AdamW
        needs["cpu_adam"] = settings.offloads_optimizer
        needs["fused_adam"] = not on_cpu and not settings.offloads_optimizer
    elif not implementation.startswith("torch"):
        needs[implementation.value] = True
    return [name for name, needed in needs.items() if needed]


def extensions_dir() -> Path:
    """The folder of compiled operators: ``TORCH_EXTENSIONS_DIR``, or torch's own default."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(cache) / "torch_extensions"


def is_built(name: str) -> bool:
    """Whether an operator has been compiled on this machine.

    Without ``TORCH_EXTENSIONS_DIR`` torch puts a folder for the Python and device version in between.
    """
    folder = extensions_dir()
    return any((place / name / f"{name}.so").exists() for place in (folder, *folder.glob("py*")))
