"""Random numbers inside a region: every tensor-parallel rank must drop other elements, for it holds other heads and columns.

Outside a region the ranks hold the same activations and have to draw the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orchestrator.models.tensor_parallel.group import TensorParallelGroup


class RegionRandomness:
    """Gives a region a random stream of its own on every rank, and the surroundings theirs back afterwards.

    The stream starts from a number drawn from the CPU's generator plus the rank, so what is drawn inside follows from
    the state of the generators outside. Recomputation that restores that state (``torch.utils.checkpoint`` does) draws
    the same again. Nothing waits for the device.
    """

    def __init__(self, group: TensorParallelGroup) -> None:
        self._group = group
        self._outside: tuple[torch.Generator, Tensor] | None = None

    def enter(self, device: torch.device, *, active: bool) -> None:
        """From here on ``device`` draws from the region's stream; nothing happens unless ``active`` or for a group of one.

        A recomputation may end within the region, so entering it twice without leaving is no error.
        """
        self._outside = None
        if not active or self._group.size == 1:
            return
        start = torch.randint(2**62, (), device="cpu", generator=torch.default_generator)
        generator = _generator(device)
        self._outside = generator, generator.get_state()
        generator.manual_seed(int(start) + self._group.rank)

    def leave(self) -> None:
        """Continue the stream from before the region; nothing happens if ``enter`` did nothing."""
        if self._outside is None:
            return
        generator, state = self._outside
        self._outside = None
        generator.set_state(state)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
