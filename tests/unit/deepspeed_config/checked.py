"""Validates a DeepSpeed JSON as the command line does, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.commands import deepspeed_json
from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError


def run(
    verb: str, values: Mapping[str, Any] | str, folder: Path, *words: str, hf_arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The ``output=json`` object of ``orchestrator VERB deepspeed_json=...`` for ``values`` (or the text of a file)."""
    file = folder / "ds_config.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    given = [f"deepspeed_json='{file}'", "deepspeed_version=0.19.8", *words]
    if hf_arguments is not None:
        arguments = folder / "arguments.json"
        arguments.write_text(json.dumps(hf_arguments), encoding="utf-8")
        given.append(f"hf_arguments='{arguments}'")
    return with_words(verb, given)


def with_words(verb: str, words: Sequence[str]) -> dict[str, Any]:
    """The same, for words that name the file themselves."""
    try:
        config = _config((*deepspeed_json.completed_words(words), f"command={verb}"))
        command = {"validate": deepspeed_json.validate, "compile": deepspeed_json.compile}[verb]
        return command(config, words).payload
    except ConfigurationError as problem:
        return {"verdict": "invalid", "findings": [finding.to_dict() for finding in problem.findings]}


@cache
def _config(words: tuple[str, ...]) -> RunConfig:
    return load_config(words)


def says(payload: Mapping[str, Any], severity: str, field: str) -> list[str]:
    """The rules of the findings of one severity about one key."""
    return [finding["rule"] for finding in payload["findings"] if finding["severity"] == severity and finding["field"] == field]
