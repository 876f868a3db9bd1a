"""What recomputation saves and what it costs: bytes of saved tensors and time of a forward and backward pass, per policy.

``python -m tests.benchmarks.recompute_cost`` runs the blocks of a Llama. With A the bytes that one block saves, S those of its
input and groups of k of the L blocks, (L/k) S + k A are alive at the peak (Chen et al., 2016): the inputs of all groups, and
everything of the one that is recomputed. ``full`` is k = 1; ``selective`` recomputes the attention alone. Times are
ratios to ``none``, measured in turn.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from orchestrator.config.enums import AttentionImplementation, Family, RecomputePolicy
from orchestrator.config.schema import ActivationCheckpointingConfig, ModelConfig
from orchestrator.models.initialization import seeded_weights
from orchestrator.models.layers import LayerKind, LayerShapes, Placement, layer_kinds
from orchestrator.models.recompute import Recompute, run_layers
from orchestrator.models.tensor_parallel.group import ALONE
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_config
from orchestrator.units import format_bytes
from tests.benchmarks.saved_tensors import saved_bytes
from tests.benchmarks.statistics import median_ratio

Policy = ActivationCheckpointingConfig


def llama(num_layers: int, attention: str) -> ModelSpec:
    config = ModelConfig(
        name="llama",
        family=Family.llama,
        vocab_size=256,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        attention_implementation=AttentionImplementation(attention),
    )
    return model_spec_from_config(config)


def blocks(spec: ModelSpec, *, selective: bool) -> list[nn.Module]:
    """The blocks of a model in fp32, the same weights every time."""
    shapes = LayerShapes(spec=spec, group=ALONE, recompute_attention=selective)
    fill = seeded_weights(spec, ALONE, seed=0)
    placement = Placement(dtype=torch.float32, device=torch.device("cpu"), fill=fill)
    numbers = [number for number, kind in enumerate(layer_kinds(spec)) if kind is LayerKind.block]
    return [placement.place(shapes.build(number), ALONE).train() for number in numbers]


def forward_of(layers: Sequence[nn.Module], policy: Policy, x: Tensor) -> Callable[[], Tensor]:
    """Runs blocks under a policy to a scalar that itself saves nothing."""
    recompute = Recompute.from_config(policy)
    return lambda: run_layers(layers, x, recompute, group=ALONE).sum()


def policies(num_layers: int) -> dict[str, Policy]:
    """Every policy; groups of all the sizes that divide the layers."""
    sizes = [size for size in range(2, num_layers) if num_layers % size == 0]
    return {
        "none": Policy(policy=RecomputePolicy.none),
        "selective": Policy(policy=RecomputePolicy.selective),
        "full": Policy(policy=RecomputePolicy.full),
        **{f"every {size} layers": Policy(policy=RecomputePolicy.every_k_layers, interval=size) for size in sizes},
    }


def seconds(forward: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    forward().backward()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--attention", choices=["eager", "sdpa"], default="eager")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of every policy")
    arguments = parser.parse_args()
    num_layers = arguments.layers
    spec = llama(num_layers, arguments.attention)
    x = torch.randn(1, arguments.sequence, spec.hidden_size, requires_grad=True)
    whole, selective = (blocks(spec, selective=choice) for choice in (False, True))

    forwards = {
        name: forward_of(selective if policy.policy is RecomputePolicy.selective else whole, policy, x)
        for name, policy in policies(num_layers).items()
    }
    parameters = [parameter for layers in (whole, selective) for layer in layers for parameter in layer.parameters()]
    saved = {name: saved_bytes(forward, excluded=parameters) for name, forward in forwards.items()}
    times: dict[str, list[float]] = {name: [] for name in forwards}
    order = random.Random(0)
    for _ in range(arguments.rounds):
        for name in order.sample(list(forwards), len(forwards)):
            times[name].append(seconds(forwards[name]))

    of_block, of_input = saved["none"].after_forward / num_layers, x.numel() * x.element_size()
    print(
        f"L = {num_layers} blocks, A = {format_bytes(of_block)}, S = {format_bytes(of_input)}, {arguments.attention} attention"
    )
    for name, policy in policies(num_layers).items():
        peak, interval = saved[name].peak, Recompute.from_config(policy).interval
        expected = num_layers / interval * of_input + interval * of_block if interval else None
        against = f"{peak / expected:.3f} x ((L/k) S + k A)" if expected else ""
        print(
            f"{name:16} kept {format_bytes(saved[name].after_forward):>11}  peak {format_bytes(peak):>11} "
            f"= {peak / of_block / num_layers:.3f} x L A  {against:27} time {median_ratio(times[name], times['none'])}"
        )


if __name__ == "__main__":
    main()
