"""An accelerate script that knows nothing of us: it finds the compiled JSON as under ``accelerate launch``."""

from __future__ import annotations

import cpu_ranks  # noqa: F401 - only where there is no device
import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256))
data = DataLoader(TensorDataset(torch.randint(0, 8, (64, 33))), batch_size=2)
model, optimizer, data = accelerator.prepare(model, DummyOptim(model.parameters()), data)
for (tokens,) in data:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.print(
    f"{accelerator.num_processes} ranks, ZeRO stage {model.zero_optimization_stage()}, last loss {float(loss.detach()):.3f}"
)
