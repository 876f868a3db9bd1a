"""Prints how many whole weights autograd keeps after a forward pass at ZeRO-3, as one of four ranks (a fake process group)."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.update({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29556"})

import deepspeed
import torch
import torch._dynamo  # before the first zero.Init
from torch import nn
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from orchestrator.config.schema import RunConfig
from orchestrator.worker import engine as worker_engine

WIDTH, LAYERS = 64, 8
DS_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "train_batch_size": 4,
    "zero_optimization": {
        "stage": 3,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_param_persistence_threshold": 0,
    },
    "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    "bf16": {"enabled": True},
}


class Matrix(nn.Module):
    """A weight that the worker's placement has partitioned."""

    def __init__(self, partition: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16))
        partition(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As our layers do it."""
        return functional.linear(x, self.weight)


def main() -> None:
    """Build, run forward once, count."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", dist_init_required=False)
    config = RunConfig()
    config.zero.stage = 3
    attempt = SimpleNamespace(config=config, ds_config=DS_CONFIG, resume_tag=None)
    groups = SimpleNamespace(data=SimpleNamespace(process_group=None), tensor=None)
    placement = worker_engine._placement(attempt, groups, None, None)  # type: ignore[arg-type]
    model = nn.Sequential(*[Matrix(placement.partition) for _ in range(LAYERS)])
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=DS_CONFIG)[0]
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        engine(torch.randn(3, 5, WIDTH, dtype=torch.bfloat16, requires_grad=True))
    whole = sum(tensor.untyped_storage().nbytes() >= WIDTH * WIDTH * 2 for tensor in saved)
    sys.stdout.write(f"\nKEPT {whole}\n")


if __name__ == "__main__":
    main()
