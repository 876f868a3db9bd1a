"""What a training step costs in time."""
