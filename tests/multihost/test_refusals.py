"""What is wrong before a run starts: nothing is started anywhere, and the host and the reason are named."""

from __future__ import annotations

NOT_READY = 3
