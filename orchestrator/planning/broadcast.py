"""Comparisons for kernels that take ints or integer numpy arrays: ints stay ints of any size, arrays broadcast."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.planning.parameters import Size


def larger(first: Size, *others: Size) -> Size:
    """The largest, element by element. ``numpy.maximum`` would turn ints into its own, which overflow."""
    result = first
    for other in others:
        result = result + (other - result) * (other > result)
    return result


def smaller(first: Size, *others: Size) -> Size:
    """The smallest, element by element."""
    result = first
    for other in others:
        result = result + (other - result) * (other < result)
    return result


def choose(condition: Size, first: Size, second: Size) -> Size:
    """``first`` where ``condition`` (booleans) holds, else ``second``."""
    return second + (first - second) * condition


def doublings(size: Size) -> Size:
    """The logarithm to base 2."""
    return np.log2(size) if isinstance(size, np.ndarray) else math.log2(size)
