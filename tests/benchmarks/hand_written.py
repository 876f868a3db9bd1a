"""The other side of a comparison: what a user who knows DeepSpeed and Hugging Face writes for the same training.

``python -m tests.benchmarks.hand_written ATTEMPT_DIR``, started by ``tests.benchmarks.sides``. Of the attempt it takes the
Hugging Face config, the DeepSpeed JSON and the sizes; nothing of the orchestrator runs in it but the gate between the steps.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from tests.benchmarks.gate import Gate, Stopped

NUM_SEQUENCES = 16


class RandomTokens(Dataset):
    """Sequences of random tokens, few enough to be learnt by heart."""

    def __init__(self, vocab_size: int, sequence_length: int) -> None:
        self.tokens = torch.randint(vocab_size, (NUM_SEQUENCES, sequence_length), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tokens[index], self.tokens[index]


class Embedding(nn.Embedding):
    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.weight, std=config.initializer_range)


class Block(LlamaDecoderLayer):
    def __init__(self, config: PreTrainedConfig, index: int) -> None:
        super().__init__(config, index)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, hidden: Tensor) -> Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        return super().forward(hidden, attention_mask=None, position_embeddings=self.rotary(hidden, positions))


class Head(nn.Linear):
    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.weight, std=config.initializer_range)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())


def pipeline_engine(config: PreTrainedConfig, ds_config: dict[str, Any], stages: int, partition: str) -> Any:
    blocks = [LayerSpec(Block, config, index) for index in range(config.num_hidden_layers)]
    norm = LayerSpec(LlamaRMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = [LayerSpec(Embedding, config), *blocks, norm, LayerSpec(Head, config)]
    model = PipelineModule(layers, num_stages=stages, loss_fn=next_token_loss, partition_method=partition)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)[0]


def plain_engine(config: PreTrainedConfig, ds_config: dict[str, Any], attention: str, dtype: torch.dtype) -> Any:
    if ds_config["zero_optimization"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=ds_config):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    else:
        with torch.device(get_accelerator().current_device_name()):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model.train()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)[0]


def forever(loader: DataLoader) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def plain_step(engine: Any, batches: Iterator[list[Tensor]]) -> float:
    for _ in range(engine.gradient_accumulation_steps()):
        tokens = next(batches)[0].to(engine.device)
        loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        engine.backward(loss)
        engine.step()
    return loss.item()


def pipeline_step(engine: Any, batches: Iterator[list[Tensor]]) -> float:
    return engine.train_batch(batches).item()


def main() -> None:
    gate, attempt = Gate(), Path(sys.argv[1])
    described = json.loads((attempt / "model.json").read_text())
    ds_config = json.loads((attempt / "ds_config.json").read_text())
    options = json.loads((attempt / "config.json").read_text())
    layout = json.loads((attempt / "plan.json").read_text())["layout"]
    stages, tensor_parallel = layout["pipeline_parallel_size"], layout["tensor_parallel_size"]
    attention, length = described["attention_implementation"], options["data"]["sequence_length"]

    config = AutoConfig.for_model(**described["hf_config"])
    config._attn_implementation = attention
    dtype = torch.bfloat16 if "bf16" in ds_config else torch.float32
    get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(verbose=False)
    if tensor_parallel > 1:
        ds_config["tensor_parallel"] = {"autotp_size": tensor_parallel}
        # The check of the sizes takes every rank for a replica; without the product there is nothing to check.
        del ds_config["train_batch_size"]
    step: Callable[[Any, Iterator[list[Tensor]]], float] = plain_step if stages == 1 else pipeline_step
    if stages == 1:
        engine = plain_engine(config, ds_config, attention, dtype)
    else:
        engine = pipeline_engine(config, ds_config, stages, options["parallelism"]["partition_method"])

    replicas = layout["data_parallel_size"]
    replica = torch.distributed.get_rank() // tensor_parallel % replicas
    data = RandomTokens(config.vocab_size, length)
    sampler = DistributedSampler(data, num_replicas=replicas, rank=replica)
    batches = forever(DataLoader(data, batch_size=layout["train_micro_batch_size_per_gpu"], sampler=sampler, drop_last=True))
    losses: list[float] = []
    try:
        while True:
            gate.step_begins()
            losses.append(step(engine, batches))
    except Stopped:
        print(f"losses of {len(losses)} steps: first {losses[0]:.4f}, last {losses[-1]:.4f}", flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
