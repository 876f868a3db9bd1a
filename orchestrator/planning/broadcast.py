"""Comparisons for kernels that take numbers or numpy arrays: ints stay ints of any size, arrays broadcast."""

from __future__ import annotations

import math

import numpy as np

from orchestrator.planning.parameters import Size


def larger(first: Size, *others: Size) -> Size:
    """The largest, element by element. ``numpy.maximum`` would turn ints into its own, which overflow."""
    result = first
    for other in others:
        if isinstance(result, np.ndarray) or isinstance(other, np.ndarray):
            result = np.maximum(result, other)
        elif other > result:
            result = other
    return result


def smaller(first: Size, *others: Size) -> Size:
    """The smallest, element by element."""
    result = first
    for other in others:
        if isinstance(result, np.ndarray) or isinstance(other, np.ndarray):
            result = np.minimum(result, other)
        elif other < result:
            result = other
    return result


def choose(condition: Size, first: Size, second: Size) -> Size:
    """``first`` where ``condition`` (booleans) holds, else ``second``."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, first, second)
    return first if condition else second


def doublings(size: Size) -> Size:
    """The logarithm to base 2."""
    return np.log2(size) if isinstance(size, np.ndarray) else math.log2(size)
