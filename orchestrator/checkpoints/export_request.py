"""What an export is asked to do: written by the command line, read by the process that has torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULT = "result.json"
"""What the process leaves beside the request when the folder is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """A complete checkpoint, and the Hugging Face folder that is to be made of it.

    ``dtype`` is a ``Precision``; ``tokenizer`` a ``tokenizer.json``, or None. The folder does not exist yet.
    """

    checkpoint: str
    output: str
    dtype: str
    max_shard_bytes: int
    tokenizer: str | None

    def write(self, path: Path) -> None:
        """Write the request as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_request(path: Path) -> ExportRequest:
    """The request in a file."""
    values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return ExportRequest(**values)
