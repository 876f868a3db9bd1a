"""Attention and positions that start anew at each document: the model computes what it does of each document alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import modeling_flash_attention_utils

from orchestrator.config.enums import AttentionImplementation, RecomputePolicy
from orchestrator.models.parts import DecoderBlock
from orchestrator.models.recompute import Recompute
from orchestrator.planning.families import FAMILIES, Family
from tests.reference_model import named_hf_parameters
from tests.unit.models.alone import model_alone
from tests.unit.models.documents import ROWS, each_alone, positions_of
from tests.unit.models.tiny import TINY, tiny_spec

EAGER, SDPA, FLASH = AttentionImplementation.eager, AttentionImplementation.sdpa, AttentionImplementation.flash_attention_2
WINDOWS = {"mistral": {"sliding_window": 4}, "phi3": {"sliding_window": 4}, "gemma2": {"sliding_window": 4}}
CASES = [(name, kernel) for name in TINY for kernel in (EAGER, SDPA) if kernel is EAGER or FAMILIES[Family(name)].sdpa]
POLICIES = {
    "full": (Recompute(interval=1), RecomputePolicy.full),
    "every 2 layers, on the host": (Recompute(interval=2, to_host=True), RecomputePolicy.every_k_layers),
    "selective": (Recompute(), RecomputePolicy.selective),
}


def tokens_of(spec, rows=ROWS):
    return torch.randint(1, spec.vocab_size, (len(rows), sum(rows[0])), generator=torch.Generator().manual_seed(0))


def gradients(model, logits, tokens):
    """By name; the gradients of the model are gone afterwards."""
    F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    found = {hf.name: parameter.grad for hf, parameter in named_hf_parameters(model)}
    model.zero_grad()
    return found


def assert_each_alone(model, spec):
    tokens = tokens_of(spec)
    together, alone = model(tokens, positions_of(ROWS)), each_alone(model, tokens, ROWS)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    found, expected = gradients(model, together, tokens), gradients(model, alone, tokens)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("model_type", "kernel"), CASES)
def test_documents_of_a_row_do_not_see_each_other(model_type, kernel):
    spec = tiny_spec(model_type, attention=kernel, **WINDOWS.get(model_type, {}))
    assert_each_alone(model_alone(spec), spec)


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **options) -> Tensor:
    """What flash attention's function of this name computes: q, k, v (tokens, heads, width), sequences side by side."""
    assert options["causal"] and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    back = options.get("window_size", (-1, -1))[0]
    repeats, outputs = q.shape[1] // k.shape[1], []
    for start, stop in pairwise(cu_seqlens_q.tolist()):
        query, key, value = (x[start:stop].transpose(0, 1) for x in (q, k, v))
        seen = torch.ones(stop - start, stop - start, dtype=torch.bool).tril()
        seen = seen if back < 0 else seen.triu(-back)
        key, value = key.repeat_interleave(repeats, 0), value.repeat_interleave(repeats, 0)
        outputs.append(F.scaled_dot_product_attention(query, key, value, seen, scale=options["softmax_scale"]).transpose(0, 1))
    return torch.cat(outputs)


def flash_attention(q, k, v, causal, softmax_scale, window_size=(-1, -1)):
    """The same for rows that are one sequence each."""
    borders = torch.arange(len(q) + 1, dtype=torch.int32) * q.shape[1]
    rows = varlen_attention(
        *(x.flatten(0, 1) for x in (q, k, v)),
        borders,
        borders,
        causal=causal,
        softmax_scale=softmax_scale,
        window_size=window_size,
    )
    return rows.unflatten(0, q.shape[:2])


@pytest.mark.parametrize("model_type", [name for name in TINY if name != "gemma2"])
def test_flash_attention_is_told_where_documents_begin(monkeypatch, model_type):
    """The kernel itself needs a GPU; here stands one in for it that does as its documentation says."""
    functions = (flash_attention, varlen_attention, None, None, None)
    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", lambda *_, **__: functions)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    spec = tiny_spec(model_type, attention=FLASH, **WINDOWS.get(model_type, {}))
    # Hugging Face takes fp32 inputs of flash attention for a mistake.
    assert_each_alone(model_alone(spec, dtype=torch.float64), spec)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "gemma2"])
def test_recomputed_blocks_see_the_same_documents(model_type, name):
    spec = tiny_spec(model_type, num_hidden_layers=3)
    tokens, positions = tokens_of(spec), positions_of(ROWS)
    plain = model_alone(spec)
    expected = gradients(plain, plain(tokens, positions), tokens)
    recompute, policy = POLICIES[name]
    model = model_alone(spec, recompute=recompute, policy=policy)
    logits = model(tokens, positions)
    # Another micro-batch goes forward before the first goes backward, as in a pipeline.
    model(tokens, positions_of(((24,), (1, 23))))
    found = gradients(model, logits, tokens)
    for parameter, gradient in expected.items():
        assert torch.equal(found[parameter], gradient), parameter


@pytest.mark.parametrize("model_type", TINY)
def test_one_document_a_row_is_as_if_there_were_none(model_type):
    spec = tiny_spec(model_type)
    model, tokens = model_alone(spec), tokens_of(spec)
    whole = torch.arange(tokens.shape[1]).expand_as(tokens)
    torch.testing.assert_close(model(tokens, whole), model(tokens), rtol=1e-5, atol=1e-5)


def test_the_blocks_of_a_micro_batch_share_a_mask_for_each_window():
    spec = tiny_spec("gemma2", num_hidden_layers=4, sliding_window=4)
    blocks = [layer for layer in model_alone(spec)._layers if isinstance(layer, DecoderBlock)]
    hidden, positions = torch.zeros(2, 24, spec.hidden_size), positions_of(ROWS)
    # ZeRO-3 gives every block a tensor of its own with the same memory.
    masks = [block.inputs.of_block(block.index, hidden, 24, positions.detach())["attention_mask"] for block in blocks]
    assert masks[0] is masks[2] and masks[1] is masks[3] and masks[0] is not masks[1]
    assert not torch.equal(masks[0], blocks[0].inputs.of_block(0, hidden, 24, positions.flip(0))["attention_mask"])


def test_longrope_tables_are_those_of_the_sequence_length():
    """Their factors depend on how long the context is, which must not differ from one micro-batch to the next."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_type": "longrope", "rope_theta": 10000.0}
    spec = tiny_spec("phi3", rope_parameters=factors, original_max_position_embeddings=16)
    block = next(layer for layer in model_alone(spec)._layers if isinstance(layer, DecoderBlock))
    hidden = torch.zeros(1, 24, spec.hidden_size)
    whole = block.inputs.of_block(0, hidden, 24)["position_embeddings"]
    short = block.inputs.of_block(0, hidden, 24, positions_of(((12, 12),)))["position_embeddings"]
    for table, expected in zip(short, whole, strict=True):
        assert torch.equal(table[0, :12], expected[0, :12]) and torch.equal(table[0, 12:], expected[0, :12])
