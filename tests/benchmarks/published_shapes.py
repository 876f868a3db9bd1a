"""Shapes of models that everybody knows, for rows that name a model and leave its sizes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes as the columns of the published files call them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int


KNOWN_SHAPES: Mapping[str, Shape] = {
    "llama 3 1b": Shape(16, 2048, 32, 8, 8192, 128256),
    "llama 3 3b": Shape(28, 3072, 24, 8, 8192, 128256),
    "llama 3 8b": Shape(32, 4096, 32, 8, 14336, 128256),
    "llama 3 70b": Shape(80, 8192, 64, 8, 28672, 128256),
    "llama 3 405b": Shape(126, 16384, 128, 8, 53248, 128256),
    "llama 2 7b": Shape(32, 4096, 32, 32, 11008, 32000),
    "llama 2 13b": Shape(40, 5120, 40, 40, 13824, 32000),
    "llama 2 70b": Shape(80, 8192, 64, 8, 28672, 32000),
    "llama 7b": Shape(32, 4096, 32, 32, 11008, 32000),
    "llama 13b": Shape(40, 5120, 40, 40, 13824, 32000),
    "llama 65b": Shape(80, 8192, 64, 64, 22016, 32000),
    "mistral 7b": Shape(32, 4096, 32, 8, 14336, 32000),
    "qwen3 8b": Shape(36, 4096, 32, 8, 12288, 151936),
    "qwen3 14b": Shape(40, 5120, 40, 8, 17408, 151936),
    "qwen3 32b": Shape(64, 5120, 64, 8, 25600, 151936),
    "gpt 3 13b": Shape(40, 5120, 40, 40, 20480, 50257),
    "gpt 3 175b": Shape(96, 12288, 96, 96, 49152, 50257),
    "gpt 2 xl": Shape(48, 1600, 25, 25, 6400, 50257),
    "gpt 1.3b": Shape(24, 2048, 16, 16, 8192, 50257),
    "gpt neox 20b": Shape(44, 6144, 64, 64, 24576, 50432),
    "opt 13b": Shape(40, 5120, 40, 40, 20480, 50272),
    "opt 30b": Shape(48, 7168, 56, 56, 28672, 50272),
    "opt 66b": Shape(64, 9216, 72, 72, 36864, 50272),
    "bloom 176b": Shape(70, 14336, 112, 112, 57344, 250880),
    "mpt 7b": Shape(32, 4096, 32, 32, 16384, 50432),
    "mpt 30b": Shape(48, 7168, 64, 64, 28672, 50432),
}
"""From the models' public configurations, by ``plain_name``; GPT 1.3B is BigScience's tr3m."""


def plain_name(label: str) -> str:
    """A model's name as ``KNOWN_SHAPES`` has it: lower case, words apart, Llama 3.1 as Llama 3."""
    words = re.sub(r"[\s_\-/]+", " ", label.lower()).strip()
    words = re.sub(r"(llama|gpt)(?=\d)", r"\1 ", words)
    return re.sub(r"llama 3\.\d", "llama 3", words)


def known_shape(label: str) -> Shape | None:
    """The shape of the model that ``label`` names."""
    return KNOWN_SHAPES.get(plain_name(label))
