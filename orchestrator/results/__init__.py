"""Runs and sweeps side by side: which there are, what they are, what varies between them."""
