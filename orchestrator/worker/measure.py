"""The processes behind ``calibrate measure=true``: ``python -m orchestrator.worker.measure REQUEST.json``, one a device.

All ranks of the host measure at the same time, as they train at the same time. Rank 0 leaves ``result.json``, a rank that
failed ``failure_rank_N.json``, beside the request.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from orchestrator.config.enums import Precision
from orchestrator.run_dir import RESULT, read_json, write_json
from orchestrator.units import KIB, MIB
from orchestrator.worker.engine import TORCH_DTYPES
from orchestrator.worker.failure import write_failure
from orchestrator.worker.operators import unlink_shared_buffer
from orchestrator.worker.progress import say
from orchestrator.worker.stack import stack

CPU_WIDTHS = (128, 256, 512, 1024)
GPU_WIDTHS = (1024, 2048, 4096, 8192)
"""Sides of the square matrix products."""
COPIED_BYTES = {"cpu": 64 * MIB, "cuda": 1024 * MIB}
REDUCED_BYTES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
ADAM_PARAMETERS = 8_000_000
LAUNCHES = 2000
LEAST_SECONDS = 0.2
"""A figure is the mean over at least so long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the request named on the command line says; the exit code is 0, or 1 if it failed."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    folder = Path(name).parent
    try:
        result = measure(read_json(Path(name)))
        if int(os.environ["RANK"]) == 0:
            write_json(folder / RESULT, result)
    except BaseException as problem:
        write_failure(folder, problem)
        traceback.print_exc()
        return 1
    return 0


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Everything but the disks, on this rank; every rank calls it.

    Figures are FLOP, bytes and parameters a second, and seconds. ``host_adam`` is None where it cannot be built.
    """
    device = get_accelerator()
    device.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(verbose=False)
    torch.distributed.barrier()
    unlink_shared_buffer()
    dtypes = [Precision(name) for name in request["precisions"]]
    say(f"measuring {torch.distributed.get_world_size()} processes: matrix products in {', '.join(dtypes)}")
    products = {dtype.value: _products(TORCH_DTYPES[dtype]) for dtype in dtypes}
    say("measuring memory, launches and collectives")
    result = {
        "products": products,
        "memory_bandwidth": _memory_bandwidth(),
        "launch_seconds": _launch_seconds(),
        "host_link_bandwidth": None if device.device_name() == "cpu" else _host_link_bandwidth(),
        "all_reduce": _all_reduces(),
    }
    say("measuring Adam on the processors")
    result["host_adam"], result["host_adam_missing"] = _host_adam()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return {**result, "stack": stack()}


def _products(dtype: torch.dtype) -> dict[str, float]:
    """FLOP/s of square products, by their side."""
    widths = CPU_WIDTHS if get_accelerator().device_name() == "cpu" else GPU_WIDTHS
    rates = {}
    for width in widths:
        first, second = (_tensor((width, width), dtype) for _ in range(2))
        rates[str(width)] = 2 * width**3 / _seconds(partial(torch.matmul, first, second))
    return rates


def _memory_bandwidth() -> float:
    """Bytes read and written a second in a copy."""
    size = COPIED_BYTES.get(get_accelerator().device_name(), COPIED_BYTES["cuda"])
    source, target = (_tensor((size // 4,), torch.float32) for _ in range(2))
    return 2 * size / _seconds(lambda: target.copy_(source))


def _launch_seconds() -> float:
    """What this host needs to start an operation on almost no data."""
    small = _tensor((16,), torch.float32)
    started = time.perf_counter()
    for _ in range(LAUNCHES):
        small.add_(1)
    seconds = time.perf_counter() - started
    get_accelerator().synchronize()
    return seconds / LAUNCHES


def _host_link_bandwidth() -> float:
    size = COPIED_BYTES["cpu"]
    on_host = get_accelerator().pin_memory(torch.zeros(size // 4))
    on_device = _tensor((size // 4,), torch.float32)
    return size / _seconds(lambda: on_device.copy_(on_host, non_blocking=True))


def _all_reduces() -> list[dict[str, float]]:
    """Seconds by ranks and bytes: in groups of neighbours of 2, 4, ... ranks, all groups at once, and in one of all."""
    world = torch.distributed.get_world_size()
    sizes = sorted({2**power for power in range(1, world.bit_length()) if world % 2**power == 0} | ({world} - {1}))
    entries = []
    for ranks in sizes:
        groups = [torch.distributed.new_group(list(range(first, first + ranks))) for first in range(0, world, ranks)]
        own = groups[torch.distributed.get_rank() // ranks]
        for size in REDUCED_BYTES:
            values = _tensor((size // 4,), torch.float32)
            seconds = _seconds(partial(torch.distributed.all_reduce, values, group=own), repeats=_repeats(size))
            entries.append({"ranks": ranks, "bytes": size, "seconds": seconds})
            torch.distributed.barrier()
    return entries


def _repeats(size: int) -> int:
    """Every rank has to call as often as the others."""
    return 50 if size <= MIB else 8


def _host_adam() -> tuple[float | None, str | None]:
    """Parameters that all ranks of the host together update a second, or why that is not known."""
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        parameter = torch.nn.Parameter(torch.zeros(ADAM_PARAMETERS))
        parameter.grad = torch.ones(ADAM_PARAMETERS)
        optimizer = DeepSpeedCPUAdam([parameter])
        rate = ADAM_PARAMETERS / _seconds(optimizer.step)
    except Exception as problem:  # a compiler that is missing, or an operator that does not build
        return None, f"DeepSpeed's CPU Adam cannot be built: {problem}"
    return rate * torch.distributed.get_world_size(), None


def _tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=dtype, device=get_accelerator().current_device_name())


def _seconds(action: Callable[[], Any], *, repeats: int | None = None) -> float:
    """Mean seconds of ``action``, which has been called before; ``repeats`` where all ranks must call as often."""
    device = get_accelerator()
    for _ in range(2):
        action()
    device.synchronize()
    if torch.distributed.is_initialized() and repeats is not None:
        torch.distributed.barrier()
    count, started = 0, time.perf_counter()
    while True:
        action()
        count += 1
        if repeats is None:
            if count % 8 == 0:
                device.synchronize()
            if time.perf_counter() - started > LEAST_SECONDS:
                break
        elif count >= repeats:
            break
    device.synchronize()
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    sys.exit(main())
