"""The complete Hugging Face config of a model, from the options or a local ``config.json``, and everything wrong with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from orchestrator.config.enums import AttentionImplementation, Family
from orchestrator.config.schema import ModelConfig
from orchestrator.findings import Finding, error, has_error
from orchestrator.planning.families import FAMILIES, SIZES, FamilyFacts
from orchestrator.planning.hf_checks import Sizes, entry_findings, extra_findings, read_sizes

_MODEL_TYPES = [family.value for family in Family]


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """A Hugging Face config that is known to be complete and consistent."""

    family: Family
    sizes: Sizes
    tie_word_embeddings: bool
    entries: dict[str, Any]


def hf_config_from_options(config: ModelConfig) -> tuple[HfModel | None, list[Finding]]:
    """Merge the sizes, ``config.json`` and ``hf_config`` of the options; ``None`` when a finding refuses the model."""
    if config.config_path is None:
        base, findings = _entries_from_sizes(config)
    else:
        base, findings = _entries_from_file(config)
    if base is None:
        return None, findings
    facts = FAMILIES[Family(base["model_type"])]
    extras = dict(config.hf_config)
    for key, finding in extra_findings(config, base, facts):
        findings.append(finding)
        del extras[key]
    entries = {**base, **extras}
    model, problems = complete_hf_config(
        entries,
        dropout=config.dropout,
        attention=config.attention_implementation,
        claims=_derived_sizes(config, facts),
        file=config.config_path,
    )
    findings += problems
    return (None if has_error(findings) else model), findings


def complete_hf_config(
    hf_config: Mapping[str, Any],
    *,
    dropout: float,
    attention: AttentionImplementation,
    claims: Mapping[str, int] | None = None,
    file: str | None = None,
) -> tuple[HfModel | None, list[Finding]]:
    """Check a Hugging Face config and fill in what it leaves out with Hugging Face's defaults.

    ``dropout`` replaces the config's own probabilities, ``attention`` is what the model is to run with. ``claims`` are sizes
    that the family derives and the user stated nevertheless. ``file`` is where the entries come from, for the messages.
    """
    facts, findings = _family_of(hf_config.get("model_type"), file)
    if facts is None:
        return None, findings
    sizes, problems = read_sizes(hf_config, facts, claims or {}, file)
    findings += problems
    findings += entry_findings(hf_config, facts, dropout=dropout, attention=attention, sizes=sizes, file=file)
    if has_error(findings):
        return None, findings
    tie = hf_config.get("tie_word_embeddings")
    tie = facts.tie_word_embeddings if tie is None else tie
    entries = {
        **deepcopy(dict(hf_config)),
        "model_type": facts.model_type,
        **{key: sizes[name] for name, key in facts.size_keys.items()},
        "tie_word_embeddings": tie,
        **dict.fromkeys(facts.dropout_keys, dropout),
    }
    return HfModel(family=facts.family, sizes=sizes, tie_word_embeddings=tie, entries=entries), findings


def _entries_from_sizes(config: ModelConfig) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The options' own shape, spelt as the family spells it; a null size that Hugging Face can derive stays a null."""
    if config.family is None:
        fix = f"set model.family to one of {', '.join(_MODEL_TYPES)}, or model.config_path to a Hugging Face config.json"
        return None, [error("model-family", "model.family", "model.family is missing", fix)]
    facts = FAMILIES[config.family]
    entries: dict[str, Any] = {"model_type": facts.model_type}
    for name, key in facts.size_keys.items():
        value = getattr(config, name)
        if value is not None or name in facts.optional_sizes:
            entries[key] = value
    if config.tie_word_embeddings is not None:
        entries["tie_word_embeddings"] = config.tie_word_embeddings
    return entries, []


def _entries_from_file(config: ModelConfig) -> tuple[dict[str, Any] | None, list[Finding]]:
    """The entries of ``config.json``, with a finding for every option that the file already decides."""
    assert config.config_path is not None
    findings = list(_size_conflicts(config))
    entries, problem = _read_json(Path(os.path.expanduser(config.config_path)))  # noqa: PTH111 - Path's raises for unknown users
    if entries is None:
        return None, [*findings, error("model-config-file", "model.config_path", *problem)]
    facts, problems = _family_of(entries.get("model_type"), config.config_path)
    findings += problems
    if facts is not None and config.family not in (None, facts.family):
        message = f"model.family={config.family} but {config.config_path} has model_type {facts.model_type!r}"
        findings.append(error("model-contradiction", "model.family", message, "set model.family=null"))
    return (entries if facts is not None else None), findings


def _size_conflicts(config: ModelConfig) -> Iterator[Finding]:
    for name in (*SIZES, "tie_word_embeddings"):
        value = getattr(config, name)
        if value is not None:
            message = f"model.{name}={value} is set although the shape comes from model.config_path={config.config_path}"
            fix = f"set model.{name}=null, or change the config.json"
            yield error("model-contradiction", f"model.{name}", message, fix)


def _read_json(path: Path) -> tuple[dict[str, Any] | None, tuple[str, str]]:
    """The object in ``path`` (or in its ``config.json``), or the message and the fix of what prevents it."""
    fix = "set model.config_path to a local Hugging Face folder or its config.json"
    try:
        path = path / "config.json" if path.is_dir() else path
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        return None, (f"cannot read {path}: {problem.strerror}", fix)
    except (ValueError, RecursionError) as problem:
        return None, (f"{path} is not JSON: {problem}", fix)
    if not isinstance(entries, dict):
        return None, (f"{path} holds a {type(entries).__name__}, not a JSON object", fix)
    return entries, ("", "")


def _family_of(model_type: Any, file: str | None) -> tuple[FamilyFacts | None, list[Finding]]:
    if model_type in _MODEL_TYPES:
        return FAMILIES[Family(model_type)], []
    known = ", ".join(_MODEL_TYPES)
    place = f" in {file}" if file else ""
    message = (
        f"model_type{place} is {model_type!r}; known are {known}"
        if model_type
        else f"model_type{place} is missing; known are {known}"
    )
    # a misspelt one only: mixtral is no mistral, and a suggestion to call it one would be taken
    near = get_close_matches(str(model_type), _MODEL_TYPES, n=1, cutoff=0.88)
    another = "choose a model of a known family; models/families/README.md is the page on adding one"
    fix = f"did you mean {near[0]!r}?" if near else another
    return None, [error("model-family", "model.config_path" if file else "model.family", message, fix)]


def _derived_sizes(config: ModelConfig, facts: FamilyFacts) -> dict[str, int]:
    """Sizes that the options state and the family's Hugging Face config has no entry for."""
    if config.config_path is not None:
        return {}
    stated = {name: getattr(config, name) for name in SIZES if name not in facts.size_keys}
    return {name: value for name, value in stated.items() if value is not None}
