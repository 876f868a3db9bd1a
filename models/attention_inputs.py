"""What every block's attention needs beside the hidden states: the rotary tables and the mask, made once and shared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from orchestrator.config.enums import AttentionImplementation


class AttentionInputs:
    """The rotary tables and causal masks of a model, for sequences without padding.

    Every block of a process shares one. They depend on nothing but the sequence length, so they are made for the first
    micro-batch and kept.
    """

    def __init__(self, config: PretrainedConfig, rotary: type[nn.Module] | None, kernel: AttentionImplementation) -> None:
        self._rotary = None if rotary is None else rotary(config=config)
        self._kernel = kernel
        self._layer_types = getattr(config, "layer_types", None)
        self._window = getattr(config, "sliding_window", None)
        self._known: dict[Any, Any] = {}

    @property
    def tensors(self) -> list[Tensor]:
        """What has been made, and stays."""
        return [tensor for made in self._known.values() for tensor in (made if isinstance(made, tuple) else (made,))]

    def of_block(self, index: int, hidden: Tensor, sequence_length: int) -> dict[str, Any]:
        """Keyword arguments for the forward pass of block ``index`` over ``sequence_length`` tokens.

        ``hidden`` gives the device and the dtype.
        """
        arguments = {"attention_mask": self._mask(self._window_of(index), hidden, sequence_length)}
        if self._rotary is not None:
            arguments["position_embeddings"] = self._positions(self._rotary, hidden, sequence_length)
        return arguments

    def _window_of(self, index: int) -> int | None:
        """Tokens that a query of the block sees back, itself included; None if all."""
        slides = self._layer_types is None or self._layer_types[index] == "sliding_attention"
        return self._window if slides else None

    def _positions(self, rotary: nn.Module, hidden: Tensor, sequence_length: int) -> Any:
        key = ("rotary", sequence_length, hidden.device, hidden.dtype)
        if key not in self._known:
            with torch.no_grad():
                positions = torch.arange(sequence_length, device=hidden.device)[None]
                # It reads the device and the dtype of the first argument only.
                self._known[key] = rotary.to(hidden.device)(hidden.detach(), positions)
        return self._known[key]

    def _mask(self, window: int | None, hidden: Tensor, sequence_length: int) -> Tensor | None:
        """Causal mask (1, 1, sequence, sequence): numbers for eager, true where seen for sdpa, None where the kernel knows."""
        if window is not None and sequence_length < window:
            window = None
        if self._kernel is AttentionImplementation.flash_attention_2:
            return None
        if self._kernel is AttentionImplementation.sdpa and window is None:
            return None
        key = ("mask", window, sequence_length, hidden.device, hidden.dtype)
        if key not in self._known:
            seen = torch.ones(sequence_length, sequence_length, dtype=torch.bool, device=hidden.device).tril()
            if window is not None:
                seen = seen.triu(1 - window)
            self._known[key] = self._as_mask(seen, hidden.dtype)[None, None]
        known: Tensor = self._known[key]
        return known

    def _as_mask(self, seen: Tensor, dtype: torch.dtype) -> Tensor:
        if self._kernel is AttentionImplementation.sdpa:
            return seen
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
