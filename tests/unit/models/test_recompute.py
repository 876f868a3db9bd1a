"""Recomputation changes no gradient, and keeps as little as it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orchestrator.config.enums import Accelerator, AttentionImplementation, RecomputePolicy
from orchestrator.models.parts import DecoderBlock
from orchestrator.models.recompute import Recompute, run_layers
from orchestrator.models.tensor_parallel.group import ALONE
from orchestrator.planning.layers import layer_activation_bytes
from tests.benchmarks.saved_tensors import saved_bytes
from tests.reference_model import named_hf_parameters
from tests.unit.models.alone import model_alone
from tests.unit.models.tiny import TINY, tiny_spec

POLICIES = {
    "full": (Recompute(interval=1), RecomputePolicy.full),
    "every 2 layers": (Recompute(interval=2), RecomputePolicy.every_k_layers),
    "full, inputs on the host": (Recompute(interval=1, to_host=True), RecomputePolicy.full),
    "selective": (Recompute(), RecomputePolicy.selective),
}
NONE = (Recompute(), RecomputePolicy.none)
LAYERS = 12
SHAPE = (2, 64)


def gradients(model_type, recompute, policy, dropout):
    """Gradients by name, and how often the first block's MLP and attention output ran."""
    torch.manual_seed(5)
    spec = tiny_spec(model_type, num_hidden_layers=3, dropout=dropout)
    model = model_alone(spec, recompute=recompute, policy=policy)
    calls = []
    block = next(layer for layer in model._layers if isinstance(layer, DecoderBlock))
    block.block.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    tokens = torch.arange(2 * 16).view(2, 16)
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    return {hf.name: parameter.grad for hf, parameter in named_hf_parameters(model)}, len(calls)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("model_type", TINY)
def test_every_policy_gives_the_same_gradients(model_type, name, dropout):
    plain, once = gradients(model_type, *NONE, dropout)
    recomputed, calls = gradients(model_type, *POLICIES[name], dropout)
    assert once == 1
    assert calls == (1 if name == "selective" else 2)
    for parameter, gradient in plain.items():
        assert torch.equal(gradient, recomputed[parameter]), parameter


def measured(recompute, policy):
    """Peak and kept bytes of the blocks of a deep model."""
    spec = tiny_spec("llama", attention=AttentionImplementation.eager, num_hidden_layers=LAYERS)
    model = model_alone(spec, recompute=recompute, policy=policy)
    blocks = [layer for layer in model._layers if isinstance(layer, DecoderBlock)]
    hidden = torch.rand(*SHAPE, spec.hidden_size, requires_grad=True)

    def forward():
        return run_layers(blocks, hidden, recompute, group=ALONE).sum()

    forward()  # makes the mask and the rotary tables, which all blocks share
    tables = [table for made in blocks[0].inputs._known.values() for table in (made if isinstance(made, tuple) else (made,))]
    saved = saved_bytes(forward, excluded=[*model.parameters(), *tables])
    return saved.peak, saved.after_forward


def test_kept_activations_follow_the_square_root_rule():
    """With L layers of A bytes and an input of S: L/k inputs and the layers of one group, (L/k) S + k A."""
    everything, _ = measured(*NONE)
    one_layer = everything / LAYERS
    kept_input = 4 * SHAPE[0] * SHAPE[1] * tiny_spec("llama").hidden_size
    for interval in (1, 2, 3, 4, 6):
        policy = RecomputePolicy.full if interval == 1 else RecomputePolicy.every_k_layers
        peak, kept = measured(Recompute(interval=interval), policy)
        assert kept == pytest.approx(LAYERS / interval * kept_input, rel=0.1), interval
        assert peak == pytest.approx(LAYERS / interval * kept_input + interval * one_layer, rel=0.1), interval


def test_recomputing_the_attention_keeps_what_the_plan_says():
    spec = tiny_spec("llama", attention=AttentionImplementation.eager, num_hidden_layers=LAYERS)
    sizes = {"micro_batch": SHAPE[0], "sequence_length": SHAPE[1], "dtype_bytes": 4, "accelerator": Accelerator.cpu}
    for recompute, policy in (NONE, (Recompute(), RecomputePolicy.selective)):
        _, kept = measured(recompute, policy)
        assert kept == pytest.approx(LAYERS * layer_activation_bytes(spec, recompute=policy, **sizes), rel=0.1), policy
    peak, kept = measured(Recompute(), RecomputePolicy.selective)
    everything, _ = measured(*NONE)
    assert kept <= peak < 0.7 * everything
