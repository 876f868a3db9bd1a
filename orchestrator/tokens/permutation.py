"""A seeded permutation of ``range(n)`` that is computed where it is asked, in constant memory.

A balanced Feistel network permutes the smallest even number of bits that holds ``n``; values that fall outside are
permuted again until they are inside (cycle walking), which keeps it a bijection. See Black and Rogaway, "Ciphers with
arbitrary finite domains" (2002).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6


def permute(positions: NDArray[np.int64], *, size: int, key: Sequence[int]) -> NDArray[np.int64]:
    """What the permutation named by ``key`` puts at ``positions``, each in ``range(size)``; same shape as ``positions``."""
    assert size > 0
    assert positions.size == 0 or (int(positions.min()) >= 0 and int(positions.max()) < size)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    round_keys = np.random.SeedSequence(list(key)).generate_state(ROUNDS, np.uint64).astype(np.uint64)
    values = _feistel(positions.astype(np.uint64), half_bits, round_keys)
    outside = values >= size
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, round_keys)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half_bits: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
