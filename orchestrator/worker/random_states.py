"""Saving and restoring every random number generator of a rank, so that dropout goes on where it stopped."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator


def save_random_states(path: Path) -> None:
    """Write the states of Python's, numpy's, torch's and the device's generators."""
    numpy_state = np.random.get_state(legacy=False)
    keys = numpy_state["state"]["key"].tolist()
    states = {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": keys}},
        "torch": torch.get_rng_state(),
        "device": get_accelerator().get_rng_state(),
    }
    torch.save(states, path)


def load_random_states(path: Path) -> None:
    """Restore what ``save_random_states`` wrote."""
    states = torch.load(path, weights_only=True, map_location="cpu")
    numpy_state = states["numpy"]
    numpy_state["state"]["key"] = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    random.setstate(states["python"])
    np.random.set_state(numpy_state)
    torch.set_rng_state(states["torch"])
    get_accelerator().set_rng_state(states["device"])
