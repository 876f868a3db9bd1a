"""What every block's attention needs beside the hidden states: rotary tables and what a token sees, made once and shared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from orchestrator.config.enums import AttentionImplementation


@dataclass(frozen=True, slots=True)
class _Documents:
    """What was made for the documents of one micro-batch."""

    positions: Tensor
    made: dict[Any, Any] = field(default_factory=dict)


class AttentionInputs:
    """The rotary tables and causal masks of a model, for sequences without padding.

    Every block of a process shares one. Without documents they depend on nothing but the sequence length, so they are made
    for the first micro-batch and kept. With documents they are the micro-batch's own: those of the latest one are kept, so
    that its blocks share them; autograd keeps those of earlier ones as long as a backward pass needs them, and a block that
    is recomputed makes them anew.
    """

    def __init__(self, config: PretrainedConfig, rotary: type[nn.Module] | None, kernel: AttentionImplementation) -> None:
        self._rotary = None if rotary is None else rotary(config=config)
        self._kernel = kernel
        self._layer_types = getattr(config, "layer_types", None)
        self._window = getattr(config, "sliding_window", None)
        self._known: dict[Any, Any] = {}
        self._documents: _Documents | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """What has been made, and stays."""
        kept = [*self._known.values(), *(self._documents.made.values() if self._documents is not None else ())]
        return [tensor for made in kept for tensor in (made if isinstance(made, tuple) else (made,))]

    def of_block(self, index: int, hidden: Tensor, sequence_length: int, positions: Tensor | None = None) -> dict[str, Any]:
        """Keyword arguments for the forward pass of block ``index`` over ``sequence_length`` tokens.

        ``hidden`` gives the device and the dtype. ``positions`` (micro_batch, sequence_length), each below
        ``sequence_length``: where each token stands in its document, which begins at a 0 or with the row; tokens see their own
        document only. None: a row is one document.
        """
        if positions is None:
            arguments = {"attention_mask": self._mask(self._window_of(index), hidden, sequence_length)}
        else:
            arguments = self._borders(self._window_of(index), hidden, positions)
        if self._rotary is not None:
            tables = self._tables(self._rotary, hidden, sequence_length)
            arguments["position_embeddings"] = tables if positions is None else self._rows(tables, positions)
        return arguments

    def _window_of(self, index: int) -> int | None:
        """Tokens that a query of the block sees back, itself included; None if all."""
        slides = self._layer_types is None or self._layer_types[index] == "sliding_attention"
        return self._window if slides else None

    def _tables(self, rotary: nn.Module, hidden: Tensor, sequence_length: int) -> Any:
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

    def _made_for(self, positions: Tensor) -> dict[Any, Any]:
        """What is made once for these positions. ZeRO-3 hands every block another tensor with the same memory."""
        known = self._documents
        if known is None or not (known.positions is positions or known.positions.is_set_to(positions)):
            known = self._documents = _Documents(positions)
        return known.made

    def _rows(self, tables: tuple[Tensor, Tensor], positions: Tensor) -> Any:
        """The rotary tables of each token, (micro_batch, sequence, width)."""
        made = self._made_for(positions)
        key = ("rotary", tables[0].dtype)
        if key not in made:
            made[key] = tuple(table[0][positions] for table in tables)
        return made[key]

    def _borders(self, window: int | None, hidden: Tensor, positions: Tensor) -> dict[str, Any]:
        """What keeps the documents apart: a mask, or for flash attention the places where they begin."""
        if window is not None and positions.shape[1] < window:
            window = None
        made = self._made_for(positions)
        if self._kernel is AttentionImplementation.flash_attention_2:
            if "starts" not in made:
                made["starts"] = _document_starts(positions)
            starts, longest = made["starts"], positions.shape[1]
            lengths = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest}
            return {"attention_mask": None, **lengths}
        key = ("mask", window, hidden.dtype)
        if key not in made:
            made[key] = _document_mask(positions, window, hidden.dtype)
        return {"attention_mask": made[key]}


@torch.no_grad()
def _document_mask(positions: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """Numbers to add to the scores, (micro_batch, 1, sequence, sequence).

    For sdpa as well: of a mask of truth values it makes such numbers in every layer, and keeps them all for the backward pass.
    """
    documents = (positions == 0).cumsum(1)
    hidden = documents[:, :, None] != documents[:, None, :]
    causal = torch.ones(hidden.shape[1:], dtype=torch.bool, device=hidden.device)
    hidden |= causal.triu(1)
    if window is not None:
        hidden |= causal.tril(-window)
    numbers = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return numbers.masked_fill_(hidden, torch.finfo(dtype).min)[:, None]


@torch.no_grad()
def _document_starts(positions: Tensor) -> Tensor:
    """Where documents begin in the rows joined to one, int32, with the number of all tokens at the end."""
    begins = positions == 0
    begins[:, 0] = True
    starts = begins.flatten().nonzero().flatten().to(torch.int32)
    return torch.cat([starts, starts.new_full((1,), positions.numel())])
