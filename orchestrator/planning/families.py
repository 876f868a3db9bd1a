"""What is known of each model family: facts about its Hugging Face modules, as data.

A family is a Hugging Face ``model_type``. The facts say how its config spells the sizes, which of its matrices carry a bias,
what kind of norm it uses and what happens between the matrices. Counts, memory and initial weights are computed from these
facts; nothing else in the orchestrator asks which family a model belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType, NoneType
from typing import Any

from orchestrator.config.enums import Family


class NormKind(StrEnum):
    """Normalization layers: ``layer_norm`` is torch's (weight and bias), ``rms_norm`` Hugging Face's own (weight only)."""

    layer_norm = "layer_norm"
    rms_norm = "rms_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A yes or no of the architecture: fixed by the family, or an entry of its Hugging Face config."""

    default: bool
    key: str | None = None

    def of(self, hf_config: Mapping[str, Any]) -> bool:
        """The value in one model's Hugging Face config."""
        return self.default if self.key is None else bool(hf_config.get(self.key, self.default))


YES = Setting(default=True)
NO = Setting(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFacts:
    """What the modules of one family are made of."""

    family: Family
    size_keys: Mapping[str, str]
    """Standard name of a size -> how the family's Hugging Face config spells it. A size that is missing here is derived."""
    optional_sizes: Mapping[str, int | None]
    """Standard name -> what Hugging Face takes when ``config.json`` lacks it; ``None`` = derived. Others are required."""
    extra_keys: Mapping[str, tuple[type, ...]]
    """Further entries of the Hugging Face config that ``model.hf_config`` may hold, with the types Hugging Face takes."""
    tie_word_embeddings: bool
    """Whether the head is the token embedding by default."""
    query_key_value_bias: Setting
    attention_output_bias: Setting
    mlp_bias: Setting
    gated_mlp: bool
    """A gate and an up projection (SwiGLU) instead of one first matrix."""
    norm: NormKind
    norms_per_layer: int = 2
    """2: before attention and before the MLP. 4: after each of them as well."""
    norm_weight_is_offset: bool = False
    """The norm multiplies by one plus its weight, in fp32; the weight starts at zero."""
    query_key_norm: bool = False
    """An RMSNorm over each query and key head."""
    learned_positions: bool = False
    """A learned position embedding (``max_position_embeddings`` rows) instead of rotary embeddings."""
    fused_query_key_value: bool = False
    """Query, key and value come out of one matrix and stay views of its output."""
    fused_gate_up: bool = False
    """Gate and up projection are one matrix, and stay views of its output."""
    score_softcap_key: str | None = None
    """Hugging Face config entry of the cap that attention scores run into, ``c * tanh(score / c)``; a null entry = none."""
    score_softcap: float | None = None
    """Its value by default."""
    logits_softcap_key: str | None = None
    """Hugging Face config entry of the cap of the logits; a null entry = none."""
    logits_softcap: float | None = None
    """Its value by default."""
    rotary_fraction: float | None = None
    """Share of each head that rotates by default; ``None`` where Hugging Face always rotates the whole head."""
    rope_types: tuple[str, ...] | None = None
    """Kinds of rotary embedding that Hugging Face takes; ``None`` = all it knows."""
    sliding_window: int | None = None
    """Tokens a query sees back in a layer with sliding-window attention by default; ``None`` where Hugging Face has none."""
    uses_sliding_window: Setting = NO
    """Whether the window applies at all."""
    first_sliding_layer: int = 0
    """With the window in use, layers from this one on have it by default (``max_window_layers``)."""
    sliding_layer_stride: int = 1
    """Every how many layers one has the window by default; the others see the whole sequence."""
    hidden_size_divides_by_heads: bool = False
    """Hugging Face refuses a hidden_size that num_attention_heads does not divide, even with a head_dim of its own."""
    activation_key: str = "hidden_act"
    activation: str
    """Activation of the MLP when the config does not name one."""
    fp32_softmax: bool = True
    """Eager attention computes the softmax in fp32 and casts it back."""
    dropout_keys: tuple[str, ...]
    """Hugging Face config entries that hold a dropout probability."""
    residual_dropout: bool = False
    """Dropout on what attention and MLP add to the residual stream. Attention dropout all have."""
    embedding_dropout: bool = False
    """Dropout on the embedding as well."""
    parallel_residual: Setting = NO
    """Attention and MLP both read the layer's input instead of one after the other."""
    padded_embedding: bool = True
    """The embedding has the row ``pad_token_id`` as its ``padding_idx``: it gets no gradient there."""
    pad_token_id: int | None = None
    """That row by default."""
    sdpa: bool = True
    """Hugging Face computes the attention with torch's ``scaled_dot_product_attention`` when asked to."""
    scaled_residual_init: tuple[str, ...] = ()
    """Ends of the parameter names whose initial deviation is divided by sqrt(2 * num_hidden_layers)."""

    @property
    def model_type(self) -> str:
        """The Hugging Face ``model_type``."""
        return self.family.value


_NUMBER = (int, float)
_WHOLE = (int,)
_WHOLE_OR_NULL = (int, NoneType)
_NUMBER_OR_NULL = (int, float, NoneType)
_FLOAT_OR_NULL = (float, NoneType)
_TOKEN = (int, list, NoneType)
_FLAG = (bool,)

_COMMON_KEYS: Mapping[str, tuple[type, ...]] = {
    "bos_token_id": _WHOLE_OR_NULL,
    "eos_token_id": _TOKEN,
    "pad_token_id": _WHOLE_OR_NULL,
    "initializer_range": _NUMBER,
    "architectures": (list, NoneType),
    "model_type": (str,),
}
_ROTARY_KEYS: Mapping[str, tuple[type, ...]] = {
    "rope_parameters": (dict, NoneType),
    "rope_scaling": (dict, NoneType),
    "rope_theta": _NUMBER,
}
_LLAMA_KEYS = {
    **_COMMON_KEYS,
    **_ROTARY_KEYS,
    "hidden_act": (str,),
    "rms_norm_eps": _NUMBER,
    "attention_dropout": _NUMBER_OR_NULL,
}
_WINDOW_KEYS: Mapping[str, tuple[type, ...]] = {
    "use_sliding_window": _FLAG,
    "sliding_window": _WHOLE_OR_NULL,
    "max_window_layers": _WHOLE,
    "layer_types": (list, NoneType),
}

_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_LLAMA_SIZES = MappingProxyType({name: name for name in (*_REQUIRED, "intermediate_size", "num_key_value_heads", "head_dim")})

_GPT2 = FamilyFacts(
    family=Family.gpt2,
    size_keys=MappingProxyType(
        {
            "vocab_size": "vocab_size",
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
        }
    ),
    optional_sizes=MappingProxyType({"intermediate_size": None, "num_key_value_heads": None, "head_dim": None}),
    extra_keys={
        **_COMMON_KEYS,
        "activation_function": (str,),
        "layer_norm_epsilon": _NUMBER,
        "scale_attn_weights": _FLAG,
        "scale_attn_by_inverse_layer_idx": _FLAG,
        "resid_pdrop": _NUMBER,
        "embd_pdrop": _NUMBER,
        "attn_pdrop": _NUMBER,
    },
    tie_word_embeddings=True,
    query_key_value_bias=YES,
    attention_output_bias=YES,
    mlp_bias=YES,
    gated_mlp=False,
    norm=NormKind.layer_norm,
    learned_positions=True,
    padded_embedding=False,
    fused_query_key_value=True,
    hidden_size_divides_by_heads=True,
    activation_key="activation_function",
    activation="gelu_new",
    fp32_softmax=False,
    dropout_keys=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    residual_dropout=True,
    embedding_dropout=True,
    scaled_residual_init=("attn.c_proj.weight", "mlp.c_proj.weight"),
)

_LLAMA = FamilyFacts(
    family=Family.llama,
    size_keys=_LLAMA_SIZES,
    optional_sizes=MappingProxyType({"num_key_value_heads": None, "head_dim": None}),
    extra_keys={**_LLAMA_KEYS, "attention_bias": _FLAG, "mlp_bias": _FLAG},
    tie_word_embeddings=False,
    query_key_value_bias=Setting(default=False, key="attention_bias"),
    attention_output_bias=Setting(default=False, key="attention_bias"),
    mlp_bias=Setting(default=False, key="mlp_bias"),
    gated_mlp=True,
    norm=NormKind.rms_norm,
    hidden_size_divides_by_heads=True,
    activation="silu",
    dropout_keys=("attention_dropout",),
)

_MISTRAL = FamilyFacts(
    family=Family.mistral,
    size_keys=_LLAMA_SIZES,
    optional_sizes=MappingProxyType({"num_key_value_heads": 8, "head_dim": None}),
    extra_keys={**_LLAMA_KEYS, "sliding_window": _WHOLE_OR_NULL},
    sliding_window=4096,
    uses_sliding_window=YES,
    tie_word_embeddings=False,
    query_key_value_bias=NO,
    attention_output_bias=NO,
    mlp_bias=NO,
    gated_mlp=True,
    norm=NormKind.rms_norm,
    activation="silu",
    dropout_keys=("attention_dropout",),
)

_QWEN2 = FamilyFacts(
    family=Family.qwen2,
    size_keys=_LLAMA_SIZES,
    optional_sizes=MappingProxyType({"num_key_value_heads": 32, "head_dim": None}),
    extra_keys={**_LLAMA_KEYS, **_WINDOW_KEYS},
    sliding_window=4096,
    uses_sliding_window=Setting(default=False, key="use_sliding_window"),
    first_sliding_layer=28,
    tie_word_embeddings=False,
    query_key_value_bias=YES,
    attention_output_bias=NO,
    mlp_bias=NO,
    gated_mlp=True,
    norm=NormKind.rms_norm,
    activation="silu",
    dropout_keys=("attention_dropout",),
)

_QWEN3 = FamilyFacts(
    family=Family.qwen3,
    size_keys=_LLAMA_SIZES,
    optional_sizes=MappingProxyType({"num_key_value_heads": 32, "head_dim": 128}),
    extra_keys={**_LLAMA_KEYS, **_WINDOW_KEYS, "attention_bias": _FLAG},
    sliding_window=4096,
    uses_sliding_window=Setting(default=False, key="use_sliding_window"),
    first_sliding_layer=28,
    tie_word_embeddings=False,
    query_key_value_bias=Setting(default=False, key="attention_bias"),
    attention_output_bias=Setting(default=False, key="attention_bias"),
    mlp_bias=NO,
    gated_mlp=True,
    norm=NormKind.rms_norm,
    query_key_norm=True,
    activation="silu",
    dropout_keys=("attention_dropout",),
)

_GPT_NEOX = FamilyFacts(
    family=Family.gpt_neox,
    size_keys=MappingProxyType({name: name for name in (*_REQUIRED, "intermediate_size")}),
    optional_sizes=MappingProxyType({"num_key_value_heads": None, "head_dim": None}),
    extra_keys={
        **_COMMON_KEYS,
        **_ROTARY_KEYS,
        "rotary_pct": _NUMBER,
        "rotary_emb_base": _NUMBER,
        "hidden_act": (str,),
        "layer_norm_eps": _NUMBER,
        "use_parallel_residual": _FLAG,
        "attention_bias": _FLAG,
        "hidden_dropout": _NUMBER,
        "attention_dropout": _NUMBER,
    },
    tie_word_embeddings=False,
    query_key_value_bias=Setting(default=True, key="attention_bias"),
    attention_output_bias=Setting(default=True, key="attention_bias"),
    mlp_bias=YES,
    gated_mlp=False,
    norm=NormKind.layer_norm,
    fused_query_key_value=True,
    padded_embedding=False,
    rotary_fraction=0.25,
    hidden_size_divides_by_heads=True,
    activation="gelu",
    dropout_keys=("hidden_dropout", "attention_dropout"),
    residual_dropout=True,
    embedding_dropout=True,
    parallel_residual=Setting(default=True, key="use_parallel_residual"),
    scaled_residual_init=("attention.dense.weight", "mlp.dense_4h_to_h.weight"),
)

_GEMMA2 = FamilyFacts(
    family=Family.gemma2,
    size_keys=_LLAMA_SIZES,
    optional_sizes=MappingProxyType({"num_key_value_heads": 4, "head_dim": 256}),
    extra_keys={
        **_COMMON_KEYS,
        **_ROTARY_KEYS,
        "hidden_activation": (str,),
        "rms_norm_eps": _NUMBER,
        "attention_bias": _FLAG,
        "attention_dropout": _NUMBER_OR_NULL,
        "query_pre_attn_scalar": _WHOLE,
        "sliding_window": _WHOLE,  # with a null Hugging Face makes no mask
        "layer_types": (list, NoneType),
        "attn_logit_softcapping": _FLOAT_OR_NULL,
        "final_logit_softcapping": _FLOAT_OR_NULL,
    },
    sliding_window=4096,
    uses_sliding_window=YES,
    sliding_layer_stride=2,
    score_softcap_key="attn_logit_softcapping",
    score_softcap=50.0,
    logits_softcap_key="final_logit_softcapping",
    logits_softcap=30.0,
    tie_word_embeddings=True,
    query_key_value_bias=Setting(default=False, key="attention_bias"),
    attention_output_bias=Setting(default=False, key="attention_bias"),
    mlp_bias=NO,
    gated_mlp=True,
    norm=NormKind.rms_norm,
    norms_per_layer=4,
    norm_weight_is_offset=True,
    hidden_size_divides_by_heads=True,
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
    pad_token_id=0,
    sdpa=False,
    dropout_keys=("attention_dropout",),
)

_PHI3 = FamilyFacts(
    family=Family.phi3,
    size_keys=_LLAMA_SIZES,
    optional_sizes=MappingProxyType({"num_key_value_heads": None, "head_dim": None}),
    extra_keys={
        **_LLAMA_KEYS,
        "attention_dropout": _NUMBER,
        "resid_pdrop": _NUMBER,
        "embd_pdrop": _NUMBER,
        "partial_rotary_factor": _NUMBER,
        "original_max_position_embeddings": _WHOLE,
        "sliding_window": _WHOLE_OR_NULL,
    },
    uses_sliding_window=YES,
    tie_word_embeddings=False,
    query_key_value_bias=NO,
    attention_output_bias=NO,
    mlp_bias=NO,
    gated_mlp=True,
    fused_gate_up=True,
    fused_query_key_value=True,
    norm=NormKind.rms_norm,
    rotary_fraction=1.0,
    rope_types=("default", "longrope"),
    activation="silu",
    pad_token_id=32000,
    dropout_keys=("attention_dropout", "resid_pdrop", "embd_pdrop"),
    residual_dropout=True,
)

FAMILIES: Mapping[Family, FamilyFacts] = MappingProxyType(
    {facts.family: facts for facts in (_GPT2, _LLAMA, _MISTRAL, _QWEN2, _QWEN3, _GPT_NEOX, _GEMMA2, _PHI3)}
)
"""The facts of every family."""

SIZES = (*_REQUIRED, "intermediate_size", "num_key_value_heads", "head_dim")
"""Standard names of the sizes of a model, in the order they are reported."""

ACTIVATIONS: Mapping[str, int] = MappingProxyType(
    {
        "gelu": 1,
        "gelu_10": 2,
        "gelu_accurate": 4,
        "gelu_fast": 7,
        "gelu_new": 4,
        "gelu_pytorch_tanh": 1,
        "hardswish": 1,
        "leaky_relu": 1,
        "mish": 1,
        "quick_gelu": 2,
        "relu": 0,
        "sigmoid": 0,
        "silu": 1,
        "swish": 1,
        "tanh": 0,
    }
)
"""Hugging Face activation -> tensors as wide as its input that it keeps for the backward pass beside its result.

Hugging Face writes ``gelu_new`` and ``gelu_fast`` out as single operations: GPT-2 keeps four tensors where a fused kernel
keeps one.
"""


def rotary_fraction(hf_config: Mapping[str, Any], facts: FamilyFacts) -> float | None:
    """Share of each head that rotates in one model; ``None`` where Hugging Face always rotates the whole head."""
    if facts.rotary_fraction is None:
        return None
    rope = hf_config.get("rope_scaling") or hf_config.get("rope_parameters") or {}
    for entries, key in ((rope, "partial_rotary_factor"), (hf_config, "partial_rotary_factor"), (hf_config, "rotary_pct")):
        if key in entries:
            return float(entries[key])
    return facts.rotary_fraction
