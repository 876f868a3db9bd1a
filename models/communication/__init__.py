"""Collectives written out in messages between two ranks."""
