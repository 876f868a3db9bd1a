"""The values DeepSpeed would use: what a JSON says, converted as DeepSpeed converts it, and DeepSpeed's defaults beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from orchestrator.deepspeed_config.keys.entry import Block, Key
from orchestrator.deepspeed_config.keys.reading import read_value
from orchestrator.deepspeed_config.keys.table import ROOT

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """A DeepSpeed JSON as it takes effect. ``values`` must be corrected (``correct``): current names, no deprecated keys."""

    values: Mapping[str, Any]
    version: Version

    def given(self, path: str) -> bool:
        """Whether the JSON says something usable at ``path``."""
        return self.raw(path) is not None

    def raw(self, path: str) -> Any:
        """What is written at ``path``; ``None`` when nothing is."""
        value: Any = self.values
        entry: Key | Block | None = ROOT
        for name in path.split("."):
            if not isinstance(value, Mapping):
                return None
            entry = entry.by_name.get(name) if isinstance(entry, Block) else None
            names = entry.names if entry is not None else (name,)
            value = next((value[spelling] for spelling in names if spelling in value), None)
        return value

    def value(self, path: str) -> Any:
        """What DeepSpeed uses at ``path``, a key of the table; its default where the JSON is silent or cannot be read."""
        entry = ROOT.find(path)
        assert isinstance(entry, Key), path
        block = ROOT.find(path.rpartition(".")[0]) if "." in path else ROOT
        assert isinstance(block, Block)
        default = entry.default_in(self.version)
        written = self.raw(path)
        if written is None or (written == AUTO and not entry.takes_auto):
            return default
        if written == AUTO:
            return AUTO
        reading = read_value(entry, written, block.reader)
        return reading.meant if reading.is_sound else default

    def block(self, path: str) -> Mapping[str, Any]:
        """The mapping written at ``path``; empty when there is none."""
        value = self.raw(path)
        return value if isinstance(value, Mapping) else {}

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage."""
        return int(self.value("zero_optimization.stage"))

    @property
    def model_dtype(self) -> str:
        """``fp16``, ``bf16`` or ``fp32``: fp16 wins in the engine where both are on."""
        if self.value("fp16.enabled"):
            return "fp16"
        return "bf16" if self.value("bf16.enabled") else "fp32"

    def offload_device(self, what: str) -> str:
        """Device of ``offload_optimizer`` or ``offload_param``; ``"none"`` without the block."""
        return str(self.value(f"zero_optimization.{what}.device"))
