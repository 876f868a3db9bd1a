"""Collectives, under the names of the installed torch, and a ring all-reduce written out in messages between two ranks."""
