"""What can be wrong with a Hugging Face config of a known family. Everything is reported, not only the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType, NoneType
from typing import Any, TypeAlias

from orchestrator.config.enums import AttentionImplementation
from orchestrator.config.schema import ModelConfig
from orchestrator.findings import Finding, error
from orchestrator.planning.families import ACTIVATIONS, SIZES, FamilyFacts, rotary_fraction

Sizes: TypeAlias = dict[str, int]
"""Standard name of a size -> its value."""

_ROPE_REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "default": (),
        "linear": ("factor",),
        "dynamic": ("factor",),
        "yarn": ("factor",),
        "longrope": ("short_factor", "long_factor"),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
)
_POSITIVE = frozenset(
    {
        "initializer_range",
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "rope_theta",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "sliding_window",
    }
)
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ROPE_NUMBERS = frozenset({"rope_theta", "factor", "partial_rotary_factor", "low_freq_factor", "high_freq_factor"})
_REFUSED = MappingProxyType(
    {
        "add_cross_attention": "a decoder with cross attention is not a causal language model",
        "is_encoder_decoder": "an encoder-decoder is not a causal language model",
        "quantization_config": "quantized weights cannot be trained",
        "per_layer_config": "layers of different shapes are not supported",
        "use_bidirectional_attention": "a language model must not see the tokens to come",
    }
)


MOST_LAYERS = 10_000
"""Names and stages are made of every layer: a number far beyond all models would only keep the planner busy."""


def read_sizes(
    hf_config: Mapping[str, Any], facts: FamilyFacts, claims: Mapping[str, int], file: str | None
) -> tuple[Sizes, list[Finding]]:
    """Every size of the model by its standard name, and findings for those that are missing, no sizes, or do not fit together.

    ``claims`` are sizes without an entry in the family's Hugging Face config; they must equal what Hugging Face derives.
    """
    sizes: Sizes = {}
    findings: list[Finding] = []
    for name, key in facts.size_keys.items():
        value = hf_config.get(key, facts.optional_sizes.get(name))
        if value is None:
            if name not in facts.optional_sizes:
                findings.append(_missing(name, key, file))
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            message = f"{_spelt(name, key, file)} is {value!r}, not a whole number above 0"
            findings.append(error("model-size", _field(name, file), message, "give a positive whole number"))
        elif name == "num_hidden_layers" and value > MOST_LAYERS:
            message = f"{_spelt(name, key, file)} is {value}, and no model has more than {MOST_LAYERS} layers"
            findings.append(error("model-size", _field(name, file), message, f"give a number from 1 to {MOST_LAYERS}"))
        else:
            sizes[name] = value
    findings += _head_findings(sizes, facts, file)
    if "hidden_size" in sizes and "num_attention_heads" in sizes:
        _derive_sizes(sizes, facts)
        findings += _claim_findings(sizes, claims, facts)
    return sizes, findings


def entry_findings(
    hf_config: Mapping[str, Any],
    facts: FamilyFacts,
    *,
    dropout: float,
    attention: AttentionImplementation,
    sizes: Sizes,
    file: str | None,
) -> Iterator[Finding]:
    """Findings about all that is no size: activation, attention, rotary embedding, dropout, padding, tied weights."""
    if not 0 <= dropout < 1:
        yield error(
            "model-dropout", "model.dropout", f"model.dropout={dropout} is not a probability", "choose 0 <= dropout < 1"
        )
    wrong = set()
    for key, value in hf_config.items():
        if key in facts.extra_keys and not _is_one_of(value, facts.extra_keys[key]):
            wrong.add(key)
            yield _wrong_type(key, value, facts, _entry_field(key, file))
        elif key in facts.extra_keys and key in _POSITIVE and value is not None and not value > 0:
            wrong.add(key)
            yield error("model-entry", _entry_field(key, file), f"{key}={value} is not above 0", "give a positive number")
    activation = hf_config.get(facts.activation_key, facts.activation)
    if isinstance(activation, str) and activation not in ACTIVATIONS:
        message = f"{facts.activation_key} is {activation!r}; known are {', '.join(ACTIVATIONS)}"
        near = get_close_matches(activation, list(ACTIVATIONS), n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"{facts.model_type} models use {facts.activation!r}"
        yield error("model-activation", _entry_field(facts.activation_key, file), message, fix)
    tie = hf_config.get("tie_word_embeddings")
    if tie is not None and not isinstance(tie, bool):
        message = f"tie_word_embeddings is {tie!r}, not true or false"
        yield error("model-entry", _field("tie_word_embeddings", file), message, "write true or false")
    for key, reason in _REFUSED.items():
        if hf_config.get(key):
            yield error("model-entry", _entry_field(key, file), f"{key} is set: {reason}", "choose a plain decoder")
    if attention is AttentionImplementation.sdpa and not facts.sdpa:
        message = f"Hugging Face has no {attention.value} attention for {facts.model_type}: it cannot cap the scores"
        fix = "set model.attention_implementation=eager, or flash_attention_2 on GPUs"
        yield error("model-attention", "model.attention_implementation", message, fix)
    if not wrong:
        yield from _padding_findings(hf_config, facts, sizes, file)
        yield from _layer_type_findings(hf_config, facts, sizes, file)
        if not facts.learned_positions:
            yield from _rope_findings(hf_config, facts, sizes, file)


def extra_findings(config: ModelConfig, base: Mapping[str, Any], facts: FamilyFacts) -> Iterator[tuple[str, Finding]]:
    """Entries of ``model.hf_config`` that do not exist, have a wrong type or contradict the rest, and what is wrong with them.

    ``base`` holds the shape that the size options or ``config.json`` give. Beyond the shape, an extra replaces an entry of
    the file.
    """
    names = {key: name for name, key in facts.size_keys.items()} | {"tie_word_embeddings": "tie_word_embeddings"}
    for key, value in config.hf_config.items():
        field = f"model.hf_config.{key}"
        if key in names or key == "model_type":
            stated = base.get(key)
            if stated is not None and stated != value:
                owner = config.config_path or f"model.{'family' if key == 'model_type' else names[key]}"
                message = f"{field}={value} contradicts {owner}, which says {stated}"
                yield key, error("model-contradiction", field, message, f"remove {field}")
        elif key in facts.dropout_keys:
            if value != config.dropout:
                message = f"{field}={value} contradicts model.dropout={config.dropout}"
                yield key, error("model-contradiction", field, message, f"remove {field} and set model.dropout")
        elif key not in facts.extra_keys:
            known = sorted({*facts.extra_keys, *names})
            near = get_close_matches(key, known, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"entries of {facts.model_type} are {', '.join(known)}"
            yield key, error("model-entry", field, f"{facts.model_type} models have no {key!r}", fix)
        elif not _is_one_of(value, facts.extra_keys[key]):
            yield key, _wrong_type(key, value, facts, field)


def _derive_sizes(sizes: Sizes, facts: FamilyFacts) -> None:
    """Fill in the sizes that follow from hidden_size and num_attention_heads, as Hugging Face does."""
    hidden_size, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    sizes.setdefault("num_key_value_heads", heads)
    sizes.setdefault("head_dim", hidden_size // heads)
    if "intermediate_size" in facts.optional_sizes:
        sizes.setdefault("intermediate_size", 4 * hidden_size)


def _head_findings(sizes: Sizes, facts: FamilyFacts, file: str | None) -> Iterator[Finding]:
    heads = sizes.get("num_attention_heads", 1)
    hidden_size = sizes.get("hidden_size", heads)
    if hidden_size % heads and (facts.hidden_size_divides_by_heads or "head_dim" not in sizes):
        message = f"hidden_size={hidden_size} is not a multiple of num_attention_heads={heads}"
        fix = f"choose a hidden_size that is a multiple of {heads}"
        if not facts.hidden_size_divides_by_heads:
            fix += ", or set head_dim"
        yield error("model-heads", _field("num_attention_heads", file), message, fix)
    key_value_heads = sizes.get("num_key_value_heads", heads)
    if "num_attention_heads" in sizes and heads % key_value_heads:
        message = f"num_attention_heads={heads} is not a multiple of num_key_value_heads={key_value_heads}"
        divisors = ", ".join(str(divisor) for divisor in range(1, heads + 1) if heads % divisor == 0)
        yield error("model-heads", _field("num_key_value_heads", file), message, f"choose one of {divisors}")


def _claim_findings(sizes: Sizes, claims: Mapping[str, int], facts: FamilyFacts) -> Iterator[Finding]:
    for name in SIZES:
        if name in claims and claims[name] != sizes[name]:
            message = f"model.{name}={claims[name]}, but {facts.model_type} models always have {sizes[name]} here"
            yield error("model-contradiction", f"model.{name}", message, f"set model.{name}=null")


def _padding_findings(hf_config: Mapping[str, Any], facts: FamilyFacts, sizes: Sizes, file: str | None) -> Iterator[Finding]:
    row, rows = hf_config.get("pad_token_id", facts.pad_token_id), sizes.get("vocab_size")
    if facts.padded_embedding and row is not None and rows is not None and not 0 <= row < rows:
        default = "" if "pad_token_id" in hf_config else f" (the default of {facts.model_type})"
        message = f"pad_token_id={row}{default} is no row of an embedding with vocab_size={rows}"
        yield error("model-entry", _entry_field("pad_token_id", file), message, f"choose 0 to {rows - 1}, or null")


def _layer_type_findings(hf_config: Mapping[str, Any], facts: FamilyFacts, sizes: Sizes, file: str | None) -> Iterator[Finding]:
    types = hf_config.get("layer_types")
    if "layer_types" not in facts.extra_keys or types is None:
        return
    field = _entry_field("layer_types", file)
    unknown = sorted({str(kind) for kind in types if kind not in _LAYER_TYPES})
    if unknown:
        message = f"layer_types has {', '.join(unknown)}; known are {', '.join(_LAYER_TYPES)}"
        yield error("model-entry", field, message, "use the known ones")
    layers = sizes.get("num_hidden_layers", len(types))
    if len(types) != layers:
        message = f"layer_types has {len(types)} entries for num_hidden_layers={layers}"
        yield error("model-entry", field, message, "give one entry a layer, or leave layer_types out")
    window = hf_config.get("sliding_window", facts.sliding_window) if facts.uses_sliding_window.of(hf_config) else None
    if "sliding_attention" in types and window is None:
        message = "layer_types has sliding_attention, but no sliding window is in use"
        yield error("model-entry", field, message, "set sliding_window (and use_sliding_window), or use full_attention alone")


def _rope_findings(hf_config: Mapping[str, Any], facts: FamilyFacts, sizes: Sizes, file: str | None) -> Iterator[Finding]:
    head_dim = sizes.get("head_dim")
    if facts.rotary_fraction is None and head_dim is not None and head_dim % 2:
        message = f"head_dim={head_dim} is odd, and rotary embeddings turn pairs"
        yield error("model-heads", _field("head_dim", file), message, "choose an even head_dim")
    key = "rope_scaling" if hf_config.get("rope_scaling") else "rope_parameters"
    rope = hf_config.get(key) or {}
    field = _entry_field(key, file)
    if not isinstance(rope, Mapping):
        return
    wrong = [entry for entry in sorted(_ROPE_NUMBERS & rope.keys()) if not _is_one_of(rope[entry], (int, float))]
    for entry in wrong:
        yield error("model-rope", field, f"{entry} of {key} is {rope[entry]!r}, not a number", "give a number")
    known = facts.rope_types or tuple(_ROPE_REQUIRED)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(rope_type, str) or rope_type not in known:
        message = f"the rope_type of {key} is {rope_type!r}; {facts.model_type} knows {', '.join(known)}"
        yield error("model-rope", field, message, "choose a known rope_type")
        return
    missing = [entry for entry in _ROPE_REQUIRED[rope_type] if entry not in rope]
    if missing:
        message = f"{key} of type {rope_type!r} lacks {', '.join(missing)}"
        yield error("model-rope", field, message, f"add {', '.join(missing)}")
    elif not wrong and head_dim:  # none or 0: the sizes have findings of their own
        yield from _rotary_width_findings(hf_config, facts, rope, field, head_dim)


def _rotary_width_findings(
    hf_config: Mapping[str, Any], facts: FamilyFacts, rope: Mapping[str, Any], field: str, head_dim: int
) -> Iterator[Finding]:
    """A rotating share that is none, and factors of longrope that are not one for each pair that rotates."""
    fraction = rotary_fraction(hf_config, facts)
    width = head_dim if fraction is None else int(head_dim * fraction)
    if not 1 <= width <= head_dim:
        message = f"partial_rotary_factor={fraction} rotates {width} of the {head_dim} elements of a head"
        yield error("model-rope", field, message, f"choose a factor from {1 / head_dim:.3g} to 1")
        return
    if rope.get("rope_type", rope.get("type")) != "longrope":
        return
    for name in _ROPE_REQUIRED["longrope"]:
        factors = rope[name]
        numbers = isinstance(factors, list) and all(_is_one_of(factor, (int, float)) for factor in factors)
        if not numbers or len(factors) != width // 2:
            message = f"{name} is no list of {width // 2} numbers, one for each pair that rotates"
            yield error("model-rope", field, message, f"give {width // 2} numbers")


def _missing(name: str, key: str, file: str | None) -> Finding:
    place = "the config.json" if file else f"model.{name}"
    fix = f"add {key} to {file}" if file else f"set model.{name}, or choose a model preset"
    return error("model-size", _field(name, file), f"{key} is missing in {place}" if file else f"{place} is missing", fix)


def _spelt(name: str, key: str, file: str | None) -> str:
    return f"{key} in {file}" if file else f"model.{name}"


def _field(name: str, file: str | None) -> str:
    return "model.config_path" if file else f"model.{name}"


def _entry_field(key: str, file: str | None) -> str:
    return "model.config_path" if file else f"model.hf_config.{key}"


def _wrong_type(key: str, value: Any, facts: FamilyFacts, field: str) -> Finding:
    kinds = " or ".join("null" if kind is NoneType else kind.__name__ for kind in facts.extra_keys[key])
    message = f"{key}={value!r} is a {type(value).__name__}, not {kinds}"
    return error("model-entry", field, message, f"give a {kinds}")


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds)
