"""Every key of a DeepSpeed JSON: type, default, range, the releases that have it, and how DeepSpeed reads it."""
