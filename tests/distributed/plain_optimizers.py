"""The optimizers of the reference loop: torch's own, and those that torch has not written out by hand, all in fp32."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from orchestrator.config.enums import OptimizerType
from orchestrator.config.schema import OptimizerConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def plain_optimizer(
    config: OptimizerConfig, groups: Sequence[dict[str, Any]], *, ends: Collection[int]
) -> torch.optim.Optimizer:
    """``groups`` without and with ``weight_decay``; ``ends`` are the ids of embedding and head, which are not Muon's."""
    decay, betas = config.weight_decay, tuple(config.betas)
    match config.type:
        case OptimizerType.AdamW:
            return torch.optim.AdamW(groups, betas=betas, eps=config.eps, weight_decay=decay)
        case OptimizerType.Adam:
            return torch.optim.Adam(groups, betas=betas, eps=config.eps, weight_decay=decay)
        case OptimizerType.SGD:
            return torch.optim.SGD(groups, momentum=config.momentum, weight_decay=decay)
        case OptimizerType.Adagrad:
            return torch.optim.Adagrad(groups, eps=config.eps, weight_decay=decay)
        case OptimizerType.Lion:
            return Lion(groups, {"betas": betas, "weight_decay": decay})
        case OptimizerType.Muon:
            factor = 1.0 if config.adam_lr is None else config.adam_lr / config.lr
            matrices = [p for group in groups for p in group["params"] if p.dim() == 2 and id(p) not in ends]
            chosen = {id(matrix) for matrix in matrices}
            others = [
                {**group, "params": [p for p in group["params"] if id(p) not in chosen], "lr_factor": factor}
                for group in groups
            ]
            defaults = {"betas": betas, "eps": config.eps, "weight_decay": decay, "momentum": config.momentum}
            return Muon([{"params": matrices}, *others], defaults, matrices=chosen)


class Lion(torch.optim.Optimizer):
    """Chen et al., 2023, algorithm 2."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                update = (first * momentum + (1 - first) * parameter.grad).sign()
                parameter -= group["lr"] * (update + group["weight_decay"] * parameter)
                state["momentum"] = second * momentum + (1 - second) * parameter.grad


class Muon(torch.optim.Optimizer):
    """Jordan et al., 2024: matrices by Nesterov momentum and five Newton-Schulz steps, the rest by AdamW."""

    def __init__(self, groups: Sequence[dict[str, Any]], defaults: dict[str, Any], *, matrices: Collection[int]) -> None:
        super().__init__(groups, defaults)
        self._matrices = matrices
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self._steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                change = self._muon if id(parameter) in self._matrices else self._adam
                parameter *= 1 - group["lr"] * group["weight_decay"]
                parameter -= group["lr"] * change(parameter, group)

    def _muon(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        state, beta = self.state[parameter], group["momentum"]
        momentum = beta * state.get("momentum", torch.zeros_like(parameter)) + (1 - beta) * parameter.grad
        state["momentum"] = momentum
        rows, columns = parameter.shape
        update = orthogonalized((1 - beta) * parameter.grad + beta * momentum)
        return update * max(1.0, rows / columns) ** 0.5

    def _adam(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        state, (first, second) = self.state[parameter], group["betas"]
        zeros = torch.zeros_like(parameter)
        state["mean"] = first * state.get("mean", zeros) + (1 - first) * parameter.grad
        state["square"] = second * state.get("square", zeros) + (1 - second) * parameter.grad**2
        mean, square = state["mean"] / (1 - first**self._steps), state["square"] / (1 - second**self._steps)
        return mean / (square.sqrt() + group["eps"])


def orthogonalized(matrix: Tensor) -> Tensor:
    """Five steps of the quintic Newton-Schulz iteration on a matrix of norm 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
