"""Plans, checks, launches and tracks DeepSpeed training runs."""
