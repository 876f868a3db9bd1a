"""Stopping at a step that all ranks agree on."""

from __future__ import annotations

from threading import Event

import torch
import torch.distributed

ASK_SECONDS = 1.0
"""The ranks ask each other about so often: before every step that takes longer, and not before each of many short ones."""


class StopAgreement:
    """Whether the run has been asked to save and stop; each rank hears of it at its own time.

    Costs an all-reduce of two numbers, which all ranks wait for: only a run that would save has one.
    """

    def __init__(self, asked: Event, device: torch.device) -> None:
        self._asked = asked
        self._device = device
        self._steps_left = 0

    def is_reached(self, step_seconds: float) -> bool:
        """Whether any rank has been asked. Every rank calls it before every step and gets the same answer.

        ``step_seconds`` is what the last step took on this rank, 0 before the first.
        """
        if self._steps_left > 0:
            self._steps_left -= 1
            return False
        said = torch.tensor([float(self._asked.is_set()), step_seconds], device=self._device)
        torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MAX)
        asked, slowest = said.tolist()
        # the same on every rank: it comes from what they agreed on
        self._steps_left = int(ASK_SECONDS / slowest) if slowest > 0 else 0
        return bool(asked)
