"""Activations of models of real width: the closed form against what autograd saves, with fake tensors and no memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from orchestrator.config.enums import Accelerator, AttentionImplementation, Family, Precision, RecomputePolicy
from orchestrator.config.load import load_config
from orchestrator.config.schema import ModelConfig, RunConfig
from orchestrator.models.tensor_parallel.group import ALONE, TensorParallelGroup
from orchestrator.planning.kernels import Kernels
from orchestrator.planning.memory.activations import Pass, PassBytes
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_config
from orchestrator.planning.partition import layer_names, partition_at
from orchestrator.worker.exact_activations import saved_activation_bytes
from tests.unit.planning.configurations import run_config

EAGER, SDPA = AttentionImplementation.eager, AttentionImplementation.sdpa
NONE, FULL, GROUPS, SELECTIVE = (
    RecomputePolicy.none,
    RecomputePolicy.full,
    RecomputePolicy.every_k_layers,
    RecomputePolicy.selective,
)
QWEN2_7B = ModelConfig(
    name="qwen2_7b",
    family=Family.qwen2,
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=32768,
)
PRESETS = ("gpt2_xl", "llama_3_8b", "mistral_7b", "qwen3_8b", "gpt_neox_20b", "gemma_2_9b", "phi_3_mini")
MODELS = {**{name: load_config([f"model={name}"]).model for name in PRESETS}, "qwen2_7b": QWEN2_7B}
KERNELS = [(name, kernel) for name in MODELS for kernel in (EAGER, SDPA) if (name, kernel) != ("gemma_2_9b", SDPA)]
LAYERS, TOKENS = 2, 1024
NEIGHBOURS = 4


@pytest.fixture(scope="module")
def tensor_group() -> Iterator[TensorParallelGroup]:
    """Ranks that are not there: collectives return at once."""
    dist.init_process_group("fake", rank=0, world_size=NEIGHBOURS, store=FakeStore())
    yield TensorParallelGroup(rank=0, size=NEIGHBOURS, process_group=dist.group.WORLD)
    dist.destroy_process_group()


def case_of(name: str, kernel: AttentionImplementation, policy: RecomputePolicy) -> tuple[RunConfig, ModelSpec]:
    model = replace(MODELS[name], num_hidden_layers=LAYERS, attention_implementation=kernel)
    config = run_config(activation_checkpointing__policy=policy, activation_checkpointing__interval=2)
    return replace(config, model=model), model_spec_from_config(model)


def ratio(config: RunConfig, spec: ModelSpec, group: TensorParallelGroup, *, micro_batch: int) -> float:
    """Closed form / saved, of the whole model with as many layers as it has here."""
    checkpointing = config.activation_checkpointing
    passed = Pass(
        micro_batch=micro_batch,
        sequence_length=TOKENS,
        dtype_bytes=2,
        tensor_parallel_size=group.size,
        sequence_parallel=group.sequence_parallel,
        recompute=checkpointing.policy,
        recompute_interval=checkpointing.interval,
        accelerator=Accelerator.cpu,
        kernels=Kernels(masks_documents=config.data.reset_at_documents),
    )
    end = len(layer_names(spec))
    (stage,) = partition_at(spec, [0, end]).stages
    predicted = PassBytes(spec, passed).activations(stage, in_flight=1)
    saved = saved_activation_bytes(config, spec, range(end), group, micro_batch=micro_batch, sequence_length=TOKENS)
    return predicted / saved


@pytest.mark.parametrize("policy", [NONE, FULL, GROUPS, SELECTIVE])
@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_closed_form_is_what_autograd_saves(name: str, kernel: AttentionImplementation, policy: RecomputePolicy) -> None:
    config, spec = case_of(name, kernel, policy)
    assert config.precision.dtype is Precision.bf16
    assert ratio(config, spec, ALONE, micro_batch=2) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("policy", [NONE, FULL, GROUPS, SELECTIVE])
@pytest.mark.parametrize(
    ("name", "kernel"),
    [("gpt2_xl", SDPA), ("llama_3_8b", SDPA), ("qwen2_7b", EAGER), ("gemma_2_9b", EAGER), ("phi_3_mini", SDPA)],
)
def test_closed_form_knows_the_masks_of_documents(name: str, kernel: AttentionImplementation, policy: RecomputePolicy) -> None:
    config, spec = case_of(name, kernel, policy)
    config.data.reset_at_documents = True
    assert ratio(config, spec, ALONE, micro_batch=2) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("policy", [NONE, FULL, SELECTIVE])
@pytest.mark.parametrize("name", ["llama_3_8b", "phi_3_mini", "gpt_neox_20b", "qwen2_7b"])
def test_tensor_parallel_ranks_save_their_share(
    tensor_group: TensorParallelGroup, name: str, policy: RecomputePolicy, sequence_parallel: bool
) -> None:
    config, spec = case_of(name, SDPA, policy)
    group = replace(tensor_group, sequence_parallel=sequence_parallel)
    assert ratio(config, spec, group, micro_batch=2) == pytest.approx(1, abs=0.02)
