"""The order of a source's training sequences, and which are held out: a function of the seed and of their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.findings import Finding, error
from orchestrator.tokens.permutation import permute

HELD_OUT_KEY = 0
TRAINING_KEY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The endless order of a source's training sequences, and its held-out ones, as sequence numbers.

    Held-out sequences are spread over the whole source and do not depend on the seed, so runs with different seeds are
    measured on the same text.
    """

    num_sequences: int
    num_held_out: int
    seed: int
    source: int = 0
    """Number of the source in a mixture: sources of equal size are shuffled differently."""

    @property
    def num_training(self) -> int:
        """Sequences of one epoch."""
        return self.num_sequences - self.num_held_out

    def training(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences at ``positions`` of the training order, which counts on over the epochs."""
        sequences = np.empty_like(positions)
        epochs = positions // self.num_training
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            within = positions[chosen] % self.num_training
            key = (TRAINING_KEY, self.seed, int(epoch), self.source)
            sequences[chosen] = self._numbers(self.num_held_out + permute(within, size=self.num_training, key=key))
        return sequences

    def held_out(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The held-out sequences at ``positions``, each below ``num_held_out``."""
        return self._numbers(positions)

    def _numbers(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return permute(places, size=self.num_sequences, key=(HELD_OUT_KEY,))


def sample_order(num_sequences: int, *, held_out_fraction: float, seed: int, source: int = 0) -> SampleOrder:
    """Divide the sequences of the ``source``-th source: a fraction above 0 holds out one at least, if there is one."""
    num_held_out = min(num_sequences, max(1, round(num_sequences * held_out_fraction))) if held_out_fraction > 0 else 0
    return SampleOrder(num_sequences=num_sequences, num_held_out=num_held_out, seed=seed, source=source)


def size_findings(
    order: SampleOrder, *, name: str, num_tokens: int, sequence_length: int, is_trained_on: bool = True
) -> list[Finding]:
    """An error where ``name`` has no sequence, or none to train on beside those that are held out."""
    if (order.num_training if is_trained_on else order.num_held_out) > 0:
        return []
    held_out = f", of which {order.num_held_out} are held out" if is_trained_on and order.num_held_out else ""
    message = f"{name}: {num_tokens} tokens make {order.num_sequences} sequences of {sequence_length}{held_out}"
    return [error("data-size", "data.sequence_length", message, "use more text, shorter sequences, or hold out less")]
