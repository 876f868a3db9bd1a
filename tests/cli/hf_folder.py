"""Uses an exported folder as anybody would; runs in a process that may import transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def use(folder: Path) -> dict[str, Any]:
    """Encode, generate and decode."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    encoded = tokenizer("the quick brown fox", return_tensors="pt")
    with torch.no_grad():
        generated = model.generate(encoded["input_ids"], min_new_tokens=8, max_new_tokens=8, do_sample=False)
    return {
        "text": tokenizer.decode(encoded["input_ids"][0]),
        "end_of_text": tokenizer.eos_token,
        "dtype": str(model.dtype),
        "generated": generated.shape[1] - encoded["input_ids"].shape[1],
    }
