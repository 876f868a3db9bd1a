"""Builds the engines of attempts and prints what they hold: ``python count_cover.py CASES``, a JSON list of ``[DIR, RANK]``.

The counting is that of ``estimate=exact``. What DeepSpeed asks to have page-locked is recorded as well; its CPU accelerator
locks nothing.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401 (DeepSpeed imports it late, and slowly)

from orchestrator.run_dir import read_json
from orchestrator.worker.exact import components_of_rank
from tests.distributed import cpu_info  # noqa: F401 (DeepSpeed asks the CPU its name in seconds)


def counted(attempt_dir: Path, rank: int) -> dict[str, Any]:
    """Components of a rank, and the sizes of its page-locked blocks."""
    accelerator = get_accelerator()
    pinned: list[int] = []

    def pin(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        pinned.append(tensor.nbytes)
        return tensor

    accelerator.pin_memory = pin
    world_size = read_json(attempt_dir / "plan.json")["layout"]["world_size"]
    components = components_of_rank(attempt_dir, rank, world_size=world_size, micro_batch=1, sequence_length=64, in_flight=[1])
    return {"components": components, "pinned": pinned}


def in_fork(attempt_dir: Path, rank: int) -> dict[str, Any]:
    """``counted`` in a child process."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writable, json.dumps(counted(attempt_dir, rank)).encode())
        except BaseException:
            os.write(writable, json.dumps({"failed": traceback.format_exc()}).encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        text = answer.read()
    os.wait()
    result: dict[str, Any] = json.loads(text)
    return result


def main() -> None:
    """Print one list with an object for each case."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.disable = True
    gc.collect()
    gc.freeze()
    results = [in_fork(Path(folder), rank) for folder, rank in json.loads(sys.argv[1])]
    sys.stdout.write("\nCOUNTED " + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
