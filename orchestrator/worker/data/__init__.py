"""From text to the batches of a training step. Torch-free: arrays leave here as numpy."""
