"""What the planner says one layer keeps, against what autograd keeps of Hugging Face's own modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.activations import ACT2FN

from orchestrator.config.schema import Accelerator, AttentionImplementation, RecomputePolicy
from orchestrator.models.build import enable_recompute
from orchestrator.planning.attention import sliding_window
from orchestrator.planning.families import ACTIVATIONS
from orchestrator.planning.layers import (
    embedding_activation_bytes,
    embedding_parameters,
    final_norm_activation_bytes,
    head_parameters,
    layer_activation_bytes,
    layer_parameters,
    layer_working_bytes,
    logits_bytes,
    model_flops_per_token,
)
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_hf
from tests.unit.planning.live_memory import LiveMemory

LAYERS = 2
COMMON = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
POSITIONS = {"max_position_embeddings": 512}
LLAMA_LIKE = {**COMMON, **POSITIONS, "intermediate_size": 176, "num_key_value_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 512},
    "llama": LLAMA_LIKE,
    "mistral": {**LLAMA_LIKE, "head_dim": 32, "sliding_window": None},
    "qwen2": LLAMA_LIKE,
    "qwen3": {**LLAMA_LIKE, "head_dim": 32},
    "gpt_neox": {**COMMON, **POSITIONS, "intermediate_size": 256},
}
DTYPES = {2: torch.bfloat16, 4: torch.float32}


def make_spec(
    model_type: str, attention: AttentionImplementation = AttentionImplementation.sdpa, dropout: float = 0.0, **entries: Any
) -> ModelSpec:
    hf_config = {"model_type": model_type, "bos_token_id": None, "eos_token_id": None, **CONFIGS[model_type], **entries}
    return model_spec_from_hf(hf_config, name=model_type, attention_implementation=attention, dropout=dropout)


def build(spec: ModelSpec, dtype_bytes: int) -> PreTrainedModel:
    config = AutoConfig.for_model(**spec.hf_config)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=spec.attention_implementation.value, dtype=DTYPES[dtype_bytes]
    )
    return model.train()


@contextmanager
def saved_bytes(model: PreTrainedModel) -> Iterator[dict[int, int]]:
    """Storages that autograd saves, by identity, parameters left out."""
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            alive.append(storage)
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def measured_bytes(spec: ModelSpec, *, micro_batch: int, sequence_length: int, dtype_bytes: int) -> int:
    torch.manual_seed(0)
    model = build(spec, dtype_bytes)
    tokens = torch.randint(0, spec.vocab_size, (micro_batch, sequence_length))
    with saved_bytes(model) as saved:
        logits = model(input_ids=tokens, use_cache=False).logits
    assert logits.requires_grad
    return sum(saved.values())


def predicted_bytes(spec: ModelSpec, *, micro_batch: int, sequence_length: int, dtype_bytes: int) -> int:
    sizes = {"micro_batch": micro_batch, "sequence_length": sequence_length, "dtype_bytes": dtype_bytes}
    keep = {"recompute": RecomputePolicy.none, "accelerator": Accelerator.cpu}
    layers = spec.num_hidden_layers * layer_activation_bytes(spec, **sizes, **keep)
    return layers + embedding_activation_bytes(spec, **sizes, **keep) + final_norm_activation_bytes(spec, **sizes)


@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("attention", [AttentionImplementation.eager, AttentionImplementation.sdpa])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_saved_activations_equal_what_autograd_keeps(
    model_type: str, attention: AttentionImplementation, micro_batch: int, dropout: float, dtype_bytes: int
) -> None:
    spec = make_spec(model_type, attention, dropout)
    sizes = {"micro_batch": micro_batch, "sequence_length": 128, "dtype_bytes": dtype_bytes}
    assert predicted_bytes(spec, **sizes) == pytest.approx(measured_bytes(spec, **sizes), rel=0.01)


@pytest.mark.parametrize(
    ("model_type", "entries"),
    [
        ("gpt_neox", {"use_parallel_residual": False}),
        ("gpt_neox", {"hidden_act": "gelu_fast", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}),
        ("gpt2", {"n_inner": 128, "activation_function": "gelu_pytorch_tanh"}),
        ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"hidden_act": "relu"}),
        ("mistral", {"sliding_window": 64}),
        ("mistral", {"sliding_window": 129}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}),
    ],
)
def test_saved_activations_follow_the_entries_of_the_config(model_type: str, entries: dict[str, Any]) -> None:
    spec = make_spec(model_type, **entries)
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 2}
    assert predicted_bytes(spec, **sizes) == pytest.approx(measured_bytes(spec, **sizes), rel=0.01)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_functions_keep_the_stated_tensors(name: str) -> None:
    source = torch.randn(512, requires_grad=True) * 1
    result_storage: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        result_storage[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        kept.append(tensor)
        return tensor

    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = ACT2FN[name](source)
    result_storage.pop(result.untyped_storage().data_ptr(), None)
    assert sum(result_storage.values()) == ACTIVATIONS[name] * source.numel() * 4


def test_grouped_attention_in_fp32_falls_back_to_the_math_kernel_on_cuda() -> None:
    spec = make_spec("llama")
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 4}
    on_cuda = layer_activation_bytes(spec, **sizes, recompute=RecomputePolicy.none, accelerator=Accelerator.cuda)
    on_cpu = layer_activation_bytes(spec, **sizes, recompute=RecomputePolicy.none, accelerator=Accelerator.cpu)
    with sdpa_kernel(SDPBackend.MATH):
        math = measured_bytes(spec, **sizes)
    assert on_cuda - on_cpu == pytest.approx((math - measured_bytes(spec, **sizes)) / LAYERS, rel=0.01)


def test_a_real_layer_of_llama_2_7b() -> None:
    shape = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32}
    spec = make_spec("llama", **shape, num_hidden_layers=1, max_position_embeddings=2048)
    sizes = {"micro_batch": 1, "sequence_length": 2048, "dtype_bytes": 2}
    with FakeTensorMode():
        model = build(spec, 2)
        hidden_states = torch.randn(1, 2048, 4096, dtype=torch.bfloat16, requires_grad=True)
        position_embeddings = model.model.rotary_emb(hidden_states, torch.arange(2048)[None])
        with saved_bytes(model) as saved:
            model.model.layers[0](hidden_states, attention_mask=None, position_embeddings=position_embeddings)
    rotary_tables = 2 * 2048 * 128 * 2
    layer = layer_activation_bytes(spec, **sizes, recompute=RecomputePolicy.none)
    assert layer + rotary_tables == sum(saved.values())


def measured_backward_peak(spec: ModelSpec, recompute: RecomputePolicy, *, dtype_bytes: int, shape: tuple[int, int]) -> int:
    """Most bytes alive in the backward pass of all layers: the incoming gradient included, those of parameters not."""
    model = build(spec, dtype_bytes)
    (final_norm,) = [name for name, _ in model.base_model.named_children() if name in ("ln_f", "norm", "final_layer_norm")]
    setattr(model.base_model, final_norm, torch.nn.Identity())
    enable_recompute(model, recompute)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tokens = torch.randint(0, spec.vocab_size, shape)
    gradient = torch.randn(*shape, spec.hidden_size).to(DTYPES[dtype_bytes])
    known = [*model.parameters(), *(parameter.grad for parameter in model.parameters()), gradient]
    with LiveMemory(known) as memory:
        hidden_states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        memory.reset_peak()
        hidden_states.backward(gradient)
    return memory.peak_bytes + gradient.nbytes


def predicted_backward_peak(spec: ModelSpec, recompute: RecomputePolicy, *, dtype_bytes: int, shape: tuple[int, int]) -> int:
    sizes = {"micro_batch": shape[0], "sequence_length": shape[1], "dtype_bytes": dtype_bytes}
    keep = {"recompute": recompute, "accelerator": Accelerator.cpu}
    return (
        spec.num_hidden_layers * layer_activation_bytes(spec, **sizes, **keep)
        + layer_working_bytes(spec, **sizes, **keep)
        + embedding_activation_bytes(spec, **sizes, **keep)
    )


@pytest.mark.parametrize("recompute", RecomputePolicy)
@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("attention", [AttentionImplementation.eager, AttentionImplementation.sdpa])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_backward_peak_is_the_saved_layers_and_one_working_set(
    model_type: str, attention: AttentionImplementation, dtype_bytes: int, recompute: RecomputePolicy
) -> None:
    spec = make_spec(model_type, attention)
    case = {"dtype_bytes": dtype_bytes, "shape": (4, 256)}
    measured = measured_backward_peak(spec, recompute, **case)
    assert predicted_backward_peak(spec, recompute, **case) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("model_type", ["gpt_neox", "llama"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_backward_peak_knows_every_activation_function(activation: str, model_type: str) -> None:
    spec = make_spec(model_type, hidden_act=activation)
    case = {"dtype_bytes": 2, "shape": (4, 256)}
    measured = measured_backward_peak(spec, RecomputePolicy.full, **case)
    assert predicted_backward_peak(spec, RecomputePolicy.full, **case) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("dtype_bytes", [2, 4])
def test_logits_and_loss_peak(dtype_bytes: int) -> None:
    spec = make_spec("llama", vocab_size=8192)
    hidden_states = torch.randn(2, 64, spec.hidden_size, dtype=DTYPES[dtype_bytes], requires_grad=True)
    head = torch.randn(spec.vocab_size, spec.hidden_size, dtype=DTYPES[dtype_bytes])
    labels = torch.randint(0, spec.vocab_size, (2 * 64,))

    def loss() -> torch.Tensor:
        logits = torch.nn.functional.linear(hidden_states, head)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, reduction="sum")

    with LiveMemory([hidden_states, head, labels]) as memory:
        loss().backward()
    predicted = logits_bytes(spec, micro_batch=2, sequence_length=64, dtype_bytes=dtype_bytes)
    assert predicted == pytest.approx(memory.peak_bytes, rel=0.01)


@pytest.mark.parametrize("recompute", RecomputePolicy)
@pytest.mark.parametrize("vocab_size", [128, 2048])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_peak_of_a_whole_pass_is_the_loss_or_a_layer(model_type: str, vocab_size: int, recompute: RecomputePolicy) -> None:
    spec = make_spec(model_type, vocab_size=vocab_size)
    model = build(spec, dtype_bytes=2)
    enable_recompute(model, recompute)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tokens = torch.randint(0, vocab_size, (4, 256))

    def loss() -> torch.Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="sum")

    with LiveMemory([*model.parameters(), *(parameter.grad for parameter in model.parameters()), tokens]) as memory:
        loss().backward()
    sizes = {"micro_batch": 4, "sequence_length": 256, "dtype_bytes": 2}
    keep = {"recompute": recompute, "accelerator": Accelerator.cpu}
    saved = LAYERS * layer_activation_bytes(spec, **sizes, **keep) + embedding_activation_bytes(spec, **sizes, **keep)
    at_loss = final_norm_activation_bytes(spec, **sizes) + logits_bytes(spec, **sizes)
    in_layer = layer_working_bytes(spec, **sizes, **keep)
    assert saved + max(at_loss, in_layer) == pytest.approx(memory.peak_bytes, rel=0.05)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_arrays_give_what_each_number_gives(model_type: str) -> None:
    spec = make_spec(model_type, AttentionImplementation.eager)
    micro_batches, lengths, ranks = np.array([1, 2])[:, None, None], np.array([64, 128])[:, None], np.array([1, 2])
    for function in (layer_activation_bytes, layer_working_bytes):
        for recompute in RecomputePolicy:
            grid = function(
                spec,
                micro_batch=micro_batches,
                sequence_length=lengths,
                dtype_bytes=2,
                tensor_parallel_size=ranks,
                recompute=recompute,
            )
            for (i, j, k), value in np.ndenumerate(grid):
                single = function(
                    spec,
                    micro_batch=int(micro_batches[i, 0, 0]),
                    sequence_length=int(lengths[j, 0]),
                    dtype_bytes=2,
                    tensor_parallel_size=int(ranks[k]),
                    recompute=recompute,
                )
                assert isinstance(single, int)
                assert single == value


def test_windows_apply_elementwise_to_arrays() -> None:
    spec = make_spec("mistral", sliding_window=128)
    lengths = np.array([127, 128])
    both = layer_activation_bytes(spec, micro_batch=1, sequence_length=lengths, dtype_bytes=2, recompute=RecomputePolicy.none)
    per_token = both / lengths
    assert per_token[1] - per_token[0] == 128 * 2 + 2 * (4 - 2) * 32 * 2


def test_tensor_parallel_ranks_hold_their_shards() -> None:
    spec = make_spec("llama", vocab_size=101)
    split_matrices = 64 * (2 * 64 + 2 * 32) + 3 * 64 * 176
    assert layer_parameters(spec, 2) == split_matrices / 2 + 2 * 64
    assert embedding_parameters(spec, 2) == head_parameters(spec, 2) == 51 * 64
    assert list(layer_parameters(spec, np.array([1, 2]))) == [layer_parameters(spec), layer_parameters(spec, 2)]
    assert layer_parameters(spec) == spec.layer_parameters


def test_replicated_biases_and_positions_stay_whole() -> None:
    spec = make_spec("gpt2")
    split = 12 * 64 * 64 + 3 * 64 + 4 * 64
    whole = 2 * 64 + 4 * 64
    assert layer_parameters(spec, 4) == split / 4 + whole
    assert embedding_parameters(spec, 4) == (16 + 512) * 64
    assert head_parameters(spec, 4) == 0


def test_tensor_parallelism_divides_what_lies_inside_the_blocks() -> None:
    spec = make_spec("llama")
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 2, "recompute": RecomputePolicy.none}
    one = layer_activation_bytes(spec, **sizes)
    norms = 2 * 128 * 2 * (64 * (4 + 2 + 2) + 4)
    assert layer_activation_bytes(spec, **sizes, tensor_parallel_size=2) - norms == (one - norms) / 2


def test_flops_are_six_a_matrix_element_and_the_scores() -> None:
    spec = make_spec("llama")
    matrices = LAYERS * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 176) + 64 * 64
    assert model_flops_per_token(spec, 128) == 6 * matrices + 12 * LAYERS * 64 * 128
    windowed = make_spec("qwen3", use_sliding_window=True, sliding_window=32, max_window_layers=1)
    assert sliding_window(windowed).layers == 1
    assert model_flops_per_token(spec, 128) - model_flops_per_token(spec, 64) == 12 * LAYERS * 64 * 64
    assert model_flops_per_token(windowed, 128) - model_flops_per_token(windowed, 64) == 12 * 1 * 4 * 32 * 64
