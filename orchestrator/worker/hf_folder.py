"""A Hugging Face folder: config, sharded safetensors with their index, tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from orchestrator.tokens.manifest import TOKENIZER
from orchestrator.worker.data.tokenizer import BESIDE_A_TOKENIZER, KNOWN_ENDS_OF_TEXT

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSize:
    """A tensor that is going to be written: its name and its bytes."""

    name: str
    num_bytes: int


def write_config(folder: Path, hf_config: Mapping[str, Any], *, dtype: torch.dtype) -> None:
    """``config.json`` of a causal language model, with the class to load and the format of the weights."""
    entries = deepcopy(dict(hf_config))
    entries["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[entries["model_type"]]]
    entries["dtype"] = str(dtype).removeprefix("torch.")
    AutoConfig.for_model(**entries).save_pretrained(folder)


def write_weights(
    folder: Path, sizes: Sequence[TensorSize], tensor: Callable[[str], Tensor], *, max_shard_bytes: int
) -> list[str]:
    """The tensors in safetensors files of at most ``max_shard_bytes`` (a larger tensor has a file of its own).

    ``tensor`` makes each when its file is written, so that memory holds one file. Returns the names of the files.
    """
    shards = in_shards(sizes, max_shard_bytes)
    files = [_shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        save_file({size.name: tensor(size.name) for size in shard}, folder / file, metadata={"format": "pt"})
        # safetensors makes it for its owner alone
        (folder / file).chmod(0o644)
    if len(files) > 1:
        places = {size.name: file for file, shard in zip(files, shards, strict=True) for size in shard}
        total = sum(size.num_bytes for size in sizes)
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return files


def in_shards(sizes: Sequence[TensorSize], max_shard_bytes: int) -> list[list[TensorSize]]:
    """Consecutive tensors, as many as fit in a file."""
    shards: list[list[TensorSize]] = [[]]
    filled = 0
    for size in sizes:
        if shards[-1] and filled + size.num_bytes > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(size)
        filled += size.num_bytes
    return shards


def write_tokenizer(folder: Path, tokenizer: Path, *, max_length: int) -> None:
    """The tokenizer as ``PreTrainedTokenizerFast`` loads it, with what a given one has beside it, and where texts end."""
    beside = [tokenizer.parent / name for name in BESIDE_A_TOKENIZER if (tokenizer.parent / name).is_file()]
    if any(path.name == "tokenizer_config.json" for path in beside):
        shutil.copyfile(tokenizer, folder / TOKENIZER)
        for path in beside:
            shutil.copyfile(path, folder / path.name)
        return
    loaded = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), model_max_length=max_length, clean_up_tokenization_spaces=False
    )
    vocabulary = loaded.get_vocab()
    end = next((token for token in KNOWN_ENDS_OF_TEXT if token in vocabulary), None)
    if end is not None:
        loaded.add_special_tokens({"eos_token": end, "bos_token": end, "pad_token": end})
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), vocabulary[end])
        GenerationConfig(**ids).save_pretrained(folder)
    loaded.save_pretrained(folder)


def _shard_name(number: int, count: int) -> str:
    return WEIGHTS if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
