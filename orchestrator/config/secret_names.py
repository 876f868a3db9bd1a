"""Names of environment variables whose values nobody may read."""

from __future__ import annotations

import re

_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name is taken for a secret (``WANDB_API_KEY``, ``HF_TOKEN``)."""
    return _SECRET_NAME.search(name) is not None
