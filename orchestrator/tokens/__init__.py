"""Token files: Megatron's ``.bin``/``.idx`` with a manifest, and the one stream of tokens they make. numpy alone."""
