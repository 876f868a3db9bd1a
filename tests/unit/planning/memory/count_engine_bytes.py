"""Builds and steps small DeepSpeed engines as one of four ranks, and prints the bytes a parameter that are alive.

Run as a program: ``python count_engine_bytes.py CASES``, a JSON list of ``{"zero_stage", "dtype", "grad_accum_dtype",
"offload"}``. A fake process group stands in for the other ranks: collectives return without doing anything, and memory is what
it would be. Each case runs in a fork, so that none sees what another left behind.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import warnings
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch._dynamo  # before the first zero.Init
from deepspeed.runtime.zero.muon import muon_optimizer  # noqa: F401 (DeepSpeed imports it late, and slowly)
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 4
MICRO_BATCHES = 2
WIDTH, LAYERS = 256, 16

ENVIRONMENT = {"RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def ds_config(case: dict[str, Any]) -> dict[str, Any]:
    """Buckets of one element, so that almost nothing but model states is left."""
    zero: dict[str, Any] = {"stage": case["zero_stage"], "reduce_bucket_size": 1, "allgather_bucket_size": 2}
    if case["zero_stage"] == 3:
        zero |= {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 0}
        zero |= {"stage3_max_reuse_distance": 0}
    if case["offload"]:
        zero["offload_optimizer"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "train_batch_size": RANKS * MICRO_BATCHES,
        "zero_optimization": zero,
        "data_types": {"grad_accum_dtype": case["grad_accum_dtype"]},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3} | ({} if case["offload"] else {"torch_adam": True})},
    }
    return config | ({"bf16": {"enabled": True}} if case["dtype"] == "bf16" else {})


def living_bytes(*, with_gradients: bool = False) -> int:
    """Bytes of all tensors, each storage once; ``with_gradients`` also those that only a parameter's ``grad`` holds."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            for tensor in (thing, thing.grad if with_gradients and thing.is_leaf else None):
                if tensor is not None:
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def measure(case: dict[str, Any]) -> dict[str, float]:
    """Bytes a parameter after two steps, and at the end of the second step's last backward pass."""
    before = living_bytes()
    config, dtype = ds_config(case), DTYPES[case["dtype"]]
    torch.set_default_dtype(dtype)
    sharded = deepspeed.zero.Init(config_dict_or_path=config) if case["zero_stage"] == 3 else contextlib.nullcontext()
    with sharded:
        model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    torch.set_default_dtype(torch.float32)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    counts = {}
    for _ in range(2):
        for _ in range(MICRO_BATCHES):
            loss = engine(torch.randn(1, WIDTH, dtype=dtype)).float().sum()
            engine.backward(loss)
            del loss
            counts["backward"] = (living_bytes(with_gradients=True) - before) / (LAYERS * WIDTH * WIDTH)
            engine.step()
        counts["step"] = (living_bytes() - before) / (LAYERS * WIDTH * WIDTH)
    engine.destroy()
    return counts


def measure_in_fork(case: dict[str, Any]) -> dict[str, float]:
    """``measure`` in a child process."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
        deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)
        os.write(writable, json.dumps(measure(case)).encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main() -> None:
    """Print one list with an object for each case."""
    os.environ.update(ENVIRONMENT)
    os.environ.pop("LOCAL_SIZE", None)
    warnings.simplefilter("ignore")
    gc.freeze()  # what the imports made is not looked at again
    results = [measure_in_fork(case) for case in json.loads(sys.argv[1])]
    sys.stdout.write("\nCOUNTED " + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
