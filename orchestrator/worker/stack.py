"""What this process trains with: the hardware and the software that its speed depends on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator


def stack() -> dict[str, str | int]:
    """Device, threads of this process, torch and DeepSpeed, as ``result.json`` has them."""
    return {
        "device": _device(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
    }


def _device() -> str:
    if get_accelerator().device_name() != "cpu":
        return str(torch.cuda.get_device_name())
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
