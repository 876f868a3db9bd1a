"""The collectives on one tensor under whichever name the installed torch has for them: 2.13 renamed both."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
REDUCE_SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"


def all_gather(whole: Tensor, own: Tensor, group: ProcessGroup | None) -> None:
    """Fill ``whole`` with every rank's ``own``, one after the other along the first dimension."""
    getattr(dist, ALL_GATHER)(whole, own, group=group)


def reduce_scatter(own: Tensor, whole: Tensor, group: ProcessGroup | None) -> None:
    """Fill ``own`` with this rank's piece, along the first dimension, of the sum of every rank's ``whole``."""
    getattr(dist, REDUCE_SCATTER)(own, whole, group=group)
