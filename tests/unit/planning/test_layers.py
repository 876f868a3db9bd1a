"""What the planner says one layer keeps, against what stays alive in the model that is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.activations import ACT2FN

from orchestrator.config.enums import Accelerator, AttentionImplementation, Family, RecomputePolicy
from orchestrator.planning.attention import sliding_window
from orchestrator.planning.families import ACTIVATIONS, FAMILIES
from orchestrator.planning.layers import (
    embedding_activation_bytes,
    embedding_parameters,
    final_norm_activation_bytes,
    head_parameters,
    kept_input_bytes,
    layer_activation_bytes,
    layer_parameters,
    layer_working_bytes,
    logits_bytes,
    model_flops_per_token,
)
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_hf
from tests.unit.planning.own_model import bytes_after_forward, peak_bytes

LAYERS = 2
COMMON = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
POSITIONS = {"max_position_embeddings": 512}
LLAMA_LIKE = {**COMMON, **POSITIONS, "intermediate_size": 176, "num_key_value_heads": 2}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 512},
    "llama": LLAMA_LIKE,
    "mistral": {**LLAMA_LIKE, "head_dim": 32, "sliding_window": None},
    "qwen2": LLAMA_LIKE,
    "qwen3": {**LLAMA_LIKE, "head_dim": 32},
    "gpt_neox": {**COMMON, **POSITIONS, "intermediate_size": 256},
    "gemma2": {**LLAMA_LIKE, "head_dim": 32, "final_logit_softcapping": None},
    "phi3": LLAMA_LIKE,
}
EAGER, SDPA = AttentionImplementation.eager, AttentionImplementation.sdpa
KEEP_HEADS = {"llama": {"num_key_value_heads": 4}, "gemma2": {"num_key_value_heads": 4}}
CASES = [(name, kind) for name in CONFIGS for kind in (EAGER, SDPA) if (name, kind) != ("gemma2", SDPA)]
"""Families and the attention Hugging Face has for them: Gemma 2 caps its scores, which sdpa cannot."""


def make_spec(
    model_type: str, attention: AttentionImplementation | None = None, dropout: float = 0.0, **entries: Any
) -> ModelSpec:
    attention = attention or (EAGER if model_type == "gemma2" else SDPA)
    hf_config = {"model_type": model_type, **NO_TOKENS, **CONFIGS[model_type], **entries}
    return model_spec_from_hf(hf_config, name=model_type, attention_implementation=attention, dropout=dropout)


def measured_bytes(spec: ModelSpec, *, micro_batch: int, sequence_length: int, dtype_bytes: int) -> int:
    return bytes_after_forward(spec, dtype_bytes, (micro_batch, sequence_length))


def predicted_bytes(spec: ModelSpec, *, micro_batch: int, sequence_length: int, dtype_bytes: int) -> int:
    sizes = {"micro_batch": micro_batch, "sequence_length": sequence_length, "dtype_bytes": dtype_bytes}
    keep = {"recompute": RecomputePolicy.none, "accelerator": Accelerator.cpu}
    layers = spec.num_hidden_layers * layer_activation_bytes(spec, **sizes, **keep)
    return layers + embedding_activation_bytes(spec, **sizes, **keep) + final_norm_activation_bytes(spec, **sizes)


@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize(("model_type", "attention"), CASES)
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
        ("gemma2", {"sliding_window": 32}),
        ("gemma2", {"attn_logit_softcapping": None, "attention_bias": True}),
        ("gemma2", {"num_key_value_heads": 4, "hidden_activation": "gelu_new"}),
        ("phi3", {"num_key_value_heads": 4}),
        ("phi3", {"sliding_window": 64}),
        ("phi3", {"sliding_window": 64, "num_key_value_heads": 4}),
        ("phi3", {"hidden_act": "relu", "partial_rotary_factor": 0.5}),
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
    saved: dict[int, int] = {}
    with FakeTensorMode():
        config = AutoConfig.for_model(**spec.hf_config)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16).train()
        parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        alive = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in parameters:
                alive.append(storage)
                saved[storage._cdata] = storage.nbytes()
            return tensor

        hidden_states = torch.randn(1, 2048, 4096, dtype=torch.bfloat16, requires_grad=True)
        position_embeddings = model.model.rotary_emb(hidden_states, torch.arange(2048)[None])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.model.layers[0](hidden_states, attention_mask=None, position_embeddings=position_embeddings)
    rotary_tables = 2 * 2048 * 128 * 2
    layer = layer_activation_bytes(spec, **sizes, recompute=RecomputePolicy.none)
    assert layer + rotary_tables == sum(saved.values())


def predicted_peak(
    spec: ModelSpec, dtype_bytes: int, shape: tuple[int, int], policy: RecomputePolicy, interval: int = 1
) -> int:
    sizes = {"micro_batch": shape[0], "sequence_length": shape[1], "dtype_bytes": dtype_bytes}
    keep = {"recompute": policy, "accelerator": Accelerator.cpu}
    saved = spec.num_hidden_layers // interval * layer_activation_bytes(spec, **sizes, **keep)
    saved += embedding_activation_bytes(spec, **sizes, **keep)
    at_loss = final_norm_activation_bytes(spec, **sizes) + logits_bytes(spec, **sizes)
    return saved + max(at_loss, layer_working_bytes(spec, **sizes, **keep, recompute_interval=interval))


@pytest.mark.parametrize("policy", [RecomputePolicy.none, RecomputePolicy.full, RecomputePolicy.selective])
@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize(("model_type", "attention"), CASES)
def test_the_backward_peak_is_the_saved_layers_and_one_working_set(
    model_type: str, attention: AttentionImplementation, dtype_bytes: int, policy: RecomputePolicy
) -> None:
    spec = make_spec(model_type, attention)
    case = (spec, dtype_bytes, (4, 256), policy)
    # The gradient of one matrix comes on top for a moment: 1.1 % of this small GPT-NeoX.
    assert predicted_peak(*case) == pytest.approx(peak_bytes(*case), rel=0.012)


@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize(("model_type", "attention"), CASES)
def test_groups_of_layers_are_held_whole_one_at_a_time(
    model_type: str, attention: AttentionImplementation, dtype_bytes: int
) -> None:
    spec = make_spec(model_type, attention, **{FAMILIES[Family(model_type)].size_keys["num_hidden_layers"]: 6})
    case = (spec, dtype_bytes, (4, 256), RecomputePolicy.every_k_layers, 3)
    assert predicted_peak(*case) == pytest.approx(peak_bytes(*case), rel=0.01)


@pytest.mark.parametrize("model_type", ["gpt_neox", "llama", "gemma2", "phi3"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_backward_peak_knows_every_activation_function(activation: str, model_type: str) -> None:
    spec = make_spec(model_type, **{FAMILIES[Family(model_type)].activation_key: activation})
    case = (spec, 2, (16, 64) if model_type == "gemma2" else (4, 256), RecomputePolicy.full)
    assert predicted_peak(*case) == pytest.approx(peak_bytes(*case), rel=0.02)


def test_a_norm_after_the_mlp_can_be_the_peak() -> None:
    spec = make_spec("gemma2", intermediate_size=64)
    case = (spec, 2, (16, 64), RecomputePolicy.none)
    assert predicted_peak(*case) == pytest.approx(peak_bytes(*case), rel=0.01)


@pytest.mark.parametrize("dtype_bytes", [2, 4])
@pytest.mark.parametrize(
    ("model_type", "entries", "tokens"),
    [("llama", {}, 256), ("llama", {}, 4096), ("gemma2", {"final_logit_softcapping": 30.0}, 4096)],
)
def test_logits_and_loss_can_be_the_peak(model_type: str, entries: dict[str, Any], dtype_bytes: int, tokens: int) -> None:
    spec = make_spec(model_type, vocab_size=8192, num_hidden_layers=1, **entries)
    case = (spec, dtype_bytes, (tokens // 64, 64), RecomputePolicy.full)
    sizes = {"micro_batch": tokens // 64, "sequence_length": 64, "dtype_bytes": dtype_bytes}
    assert logits_bytes(spec, **sizes) > 0.9 * predicted_peak(*case)
    assert predicted_peak(*case) == pytest.approx(peak_bytes(*case), rel=0.02)


def test_sequence_parallelism_divides_what_lies_between_the_blocks() -> None:
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 2, "tensor_parallel_size": 4}
    tokens = 2 * 128
    for model_type, per_token in (
        ("llama", 2 * (64 * 4 + 4) + 2 * 64 * 2),  # two norms: fp32 input, statistic, value before the weight
        ("gemma2", 4 * (64 * 4 + 4) + 4 * 64 * 4),  # four norms, the value in fp32
        ("gpt2", 2 * (64 * 2 + 8)),
    ):
        spec = make_spec(model_type, **KEEP_HEADS.get(model_type, {}))
        for policy in (RecomputePolicy.none, RecomputePolicy.selective):
            whole = layer_activation_bytes(spec, **sizes, recompute=policy)
            shared = layer_activation_bytes(spec, **sizes, recompute=policy, sequence_parallel=True)
            assert whole - shared == tokens * per_token * 3 // 4
        norm = final_norm_activation_bytes(spec, **sizes) - final_norm_activation_bytes(spec, **sizes, sequence_parallel=True)
        norms = 4 if model_type == "gemma2" else 2
        assert norm == tokens * per_token // norms * 3 // 4
        for policy in (RecomputePolicy.full, RecomputePolicy.every_k_layers):
            kept = layer_activation_bytes(spec, **sizes, recompute=policy, sequence_parallel=True)
            assert kept == tokens * 64 * 2 // 4


def test_sequence_parallelism_divides_dropout_masks() -> None:
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 2, "tensor_parallel_size": 2}
    keep = {"recompute": RecomputePolicy.none, "accelerator": Accelerator.cuda}
    masks = {}
    for dropout in (0.0, 0.1):
        spec = make_spec("gpt2", EAGER, dropout)
        for function in (layer_activation_bytes, embedding_activation_bytes):
            whole, shared = (function(spec, **sizes, **keep, sequence_parallel=flag) for flag in (False, True))
            masks[function, dropout] = whole - shared
    half = 2 * 128 * 64 // 2
    assert masks[layer_activation_bytes, 0.1] - masks[layer_activation_bytes, 0.0] == 2 * half
    assert masks[embedding_activation_bytes, 0.1] - masks[embedding_activation_bytes, 0.0] == half


def test_kept_inputs_are_whole_partitioned_or_moved() -> None:
    spec = make_spec("llama")
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 2, "tensor_parallel_size": 4}
    one = 2 * 128 * 64 * 2
    assert kept_input_bytes(spec, **sizes) == one
    assert kept_input_bytes(spec, **sizes, partition_activations=True) == one // 4
    assert kept_input_bytes(spec, **sizes, sequence_parallel=True, partition_activations=True) == one // 4
    working = [layer_working_bytes(spec, **sizes, recompute=RecomputePolicy.full, input_moved=flag) for flag in (False, True)]
    assert working[1] - working[0] == one


def test_more_recomputation_keeps_less_and_works_with_more() -> None:
    spec = make_spec("llama", EAGER)
    sizes = {"micro_batch": 2, "sequence_length": 128, "dtype_bytes": 2}
    none, selective, full = (
        layer_activation_bytes(spec, **sizes, recompute=policy)
        for policy in (RecomputePolicy.none, RecomputePolicy.selective, RecomputePolicy.full)
    )
    assert none > selective > full
    working = [
        layer_working_bytes(spec, **sizes, recompute=RecomputePolicy.every_k_layers, recompute_interval=interval)
        for interval in (1, 2, 3)
    ]
    assert working[0] == layer_working_bytes(spec, **sizes, recompute=RecomputePolicy.full)
    assert working[2] - working[1] == working[1] - working[0] == none


@pytest.mark.parametrize("model_type", CONFIGS)
def test_arrays_give_what_each_number_gives(model_type: str) -> None:
    spec = make_spec(model_type, EAGER)
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
    alternating = make_spec("gemma2", sliding_window=32, num_hidden_layers=5)
    assert sliding_window(alternating).layers == 3
    assert model_flops_per_token(alternating, 128) - model_flops_per_token(alternating, 64) == 12 * 2 * 4 * 32 * 64
    assert model_flops_per_token(windowed, 128) - model_flops_per_token(windowed, 64) == 12 * 1 * 4 * 32 * 64
