"""Holds overrides and composed values against the schema and reports everything that is wrong, with the nearest right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from typing import Any, get_args, get_origin

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config.options import all_options, fields_of, is_section, split_optional, type_name
from orchestrator.config.schema import RunConfig
from orchestrator.config.secret_names import is_secret_name
from orchestrator.findings import Finding, error

MISSING = "???"
OVERLAYS = ("experiment", "sweep")
"""Groups that may be null: none of their files is used."""
LARGEST_INTEGER = 2**53
"""Far above any size there is, and exact as a float."""
LARGEST_NUMBER = 1e30
"""Refuses infinity and, as no comparison with it is true, not-a-number."""
LONGEST_PROJECT, LONGEST_TAG = 128, 64
"""Characters that W&B takes (0.31)."""
_ENVIRONMENT = "launcher.environment"


def check_overrides(overrides: Sequence[str], loader: ConfigLoader, *, sweep: bool = False) -> tuple[list[str], list[Finding]]:
    """Split overrides into those Hydra can compose and findings for those it cannot.

    Checks the grammar, the groups and their options, and the dotted keys; the values are checked once composed.
    ``sweep`` allows several values for one key.
    """
    parser = OverridesParser.create(config_loader=loader)
    usable: list[str] = []
    findings: list[Finding] = []
    for text in overrides:
        if text.startswith("=") or ("=" not in text and not text.startswith("~")):
            fix = "write KEY=VALUE or GROUP=OPTION, without spaces"
            findings.append(error("override-grammar", text, f"{text!r} is not an override", fix))
            continue
        try:
            (override,) = parser.parse_overrides([text])
        except (HydraException, OmegaConfBaseException, ValueError) as problem:
            reason = str(problem).splitlines()[0]
            findings.append(
                error(
                    "override-grammar", text.split("=")[0], f"{text!r}: {reason}", "write KEY=VALUE; quote special characters"
                )
            )
            continue
        problems = list(_override_findings(override, loader, sweep=sweep))
        findings += problems
        if not problems:
            usable.append(text)
    return usable, findings


def check_values(values: Mapping[str, Any]) -> tuple[RunConfig | None, list[Finding]]:
    """Build the configuration from composed values, or say everything that is wrong with them."""
    findings: list[Finding] = []
    config = _section(RunConfig, values, "", findings)
    if config is not None and not findings:
        findings.extend(secret_findings(config.launcher.environment))
        findings.extend(_name_findings(config))
    return (None, findings) if findings else (config, [])


def _override_findings(override: Override, loader: ConfigLoader, *, sweep: bool) -> Iterable[Finding]:
    key = override.key_or_group
    if override.is_sweep_override() and not sweep:
        yield error(
            "sweep-value",
            key,
            f"{override.input_line!r} gives several values",
            "add -m to launch for a sweep, or quote one value: key='a,b'",
        )
    elif override.is_discrete_sweep() and next(override.sweep_iterator(), None) is None:
        # Hydra would make a sweep without points of it
        fix = "give values: key=1,2 or key=range(1,5); glob(*) is for the options of a group"
        yield error("sweep-value", key, f"{override.input_line!r} gives no value", fix)
    elif key == "hydra" or key.startswith(("hydra.", "hydra/")):
        return
    elif key in _groups(loader):
        yield from _group_findings(override, loader)
    elif override.is_delete():
        yield error(
            "override-grammar",
            key,
            f"{override.input_line!r} deletes an option, which would fall back to a default",
            f"set it: {key}=...",
        )
    elif key == _ENVIRONMENT or key.startswith(f"{_ENVIRONMENT}."):
        value = override.value() if key == _ENVIRONMENT and not override.is_sweep_override() else None
        yield from secret_findings(value if isinstance(value, dict) else {key.removeprefix(f"{_ENVIRONMENT}."): value})
    elif not is_known_key(key):
        yield unknown_key(key, groups=_groups(loader))


def _group_findings(override: Override, loader: ConfigLoader) -> Iterable[Finding]:
    group = override.key_or_group
    options = [option for option in loader.get_group_options(group, ObjectType.CONFIG) if not option.startswith("_")]
    if override.is_delete():
        yield error("unknown-option", group, f"the group {group} cannot be deleted", f"choose one of {', '.join(options)}")
        return
    chosen: list[Any] = []
    if override.is_sweep_override():
        chosen = list(override.sweep_iterator()) if override.is_choice_sweep() else []
    else:
        value = override.value()
        chosen = list(value) if isinstance(value, list) else [value]
    if any(isinstance(choice, dict) for choice in chosen):
        yield error("unknown-option", group, f"{group} takes the name of an option, not a mapping", f"write {group}.KEY=VALUE")
        return
    if None in chosen and group in OVERLAYS:
        chosen = [choice for choice in chosen if choice is not None]
    for choice in ("null" if choice is None else str(choice) for choice in chosen):
        if choice not in options:
            if override.value_type is ValueType.GLOB_CHOICE_SWEEP:
                message = f"{override.input_line!r} takes {choice}, which is a part of others"
                yield error("unknown-option", group, message, f"leave such parts out: {group}=glob(*,exclude=_*)")
                return
            yield error(
                "unknown-option",
                group,
                f"{group} has no option {choice!r}",
                f"{_path_hint(group, choice)}{did_you_mean(choice, options)}options: {', '.join(options)}",
            )


def _path_hint(group: str, choice: str) -> str:
    """What to write in place of a path, which no group takes."""
    if "/" not in choice and not choice.endswith((".yaml", ".json")):
        return ""
    if group == "model" and not choice.endswith(".yaml"):
        return f"a local Hugging Face folder is named by model=hf model.config_path={choice}; "
    return f"a file DIR/{group}/NAME.yaml of your own is named by --config-dir DIR {group}=NAME; "


def secret_findings(environment: Mapping[Any, Any]) -> Iterable[Finding]:
    """Secrets among the workers' variables: they would reach files, command lines and the tracker. Values are never shown."""
    for name in environment:
        if is_secret_name(str(name)):
            message = f"{name} looks like a secret, and this option is written to files, command lines and the tracker"
            fix = (
                f"export {name} in the shell you launch from, or keep it in the host's own store (netrc, ~/.cache/huggingface)"
            )
            yield error("secret", f"{_ENVIRONMENT}.{name}", message, fix)


def _name_findings(config: RunConfig) -> Iterable[Finding]:
    """Names become parts of paths."""
    for field, name in (("model.name", config.model.name), ("cluster.name", config.cluster.name)):
        if not re.fullmatch(r"[\w.+-]+", name) or name in (".", ".."):
            yield error("name", field, f"{name!r} is not a name", "use letters, digits, and . _ + -")
    yield from _wandb_findings(config)


def _wandb_findings(config: RunConfig) -> Iterable[Finding]:
    """What W&B refuses when it opens its run, which then would not be recorded at all."""
    project = config.tracking.project
    if re.search(r"[/\\#?%:]", project) or len(project) > LONGEST_PROJECT:
        message = f"{project!r} is no name of a W&B project"
        yield error("name", "tracking.project", message, f"use at most {LONGEST_PROJECT} characters, and none of / \\ # ? % :")
    for tag in config.tracking.tags:
        if len(tag) > LONGEST_TAG:
            yield error("name", "tracking.tags", f"{tag!r} is no tag for W&B", f"use at most {LONGEST_TAG} characters")


@lru_cache(maxsize=1)
def _groups(loader: ConfigLoader) -> list[str]:
    """The groups; Hydra copies its whole repository to list them, so it is asked once and not for every override."""
    return [group for group in loader.list_groups("") if group != "hydra" and not group.startswith("_")]


def is_known_key(key: str) -> bool:
    """Whether a dotted key names an option, a section, or an entry of a free mapping."""
    annotation: Any = RunConfig
    for name in key.split("."):
        if is_section(annotation):
            if name not in fields_of(annotation):
                return False
            annotation, _ = split_optional(fields_of(annotation)[name])
        else:
            return get_origin(annotation) is dict
    return True


def unknown_key(key: str, *, groups: Sequence[str] = ()) -> Finding:
    """The finding for a key the schema does not have, with the nearest ones it has."""
    paths = [option.path for option in all_options()]
    last = key.rsplit(".", 1)[-1]
    section = key.rpartition(".")[0]
    siblings = [path for path in paths if path.rpartition(".")[0] == section]
    near = (
        get_close_matches(key, siblings or [*paths, *groups], n=1, cutoff=0.8)
        or [path for path in paths if path.rsplit(".", 1)[-1] == last]
        or get_close_matches(key, [*paths, *groups], n=1, cutoff=0.6)
        or _by_last_name(last, paths)
    )
    known = f"known: {', '.join(siblings)}" if siblings and section else "orchestrator launch --help lists every option"
    fix = f"did you mean {' or '.join(near[:3])}?" if near else known
    return error("unknown-key", key, f"there is no option {key!r}", fix)


def _by_last_name(last: str, paths: Sequence[str]) -> list[str]:
    names = {path.rsplit(".", 1)[-1]: path for path in paths}
    return [names[name] for name in get_close_matches(last, list(names), n=1, cutoff=0.75)]


def unknown_flag(word: str) -> Finding:
    """The finding for a word that begins with a dash and is none of Hydra's flags: most people mean an option."""
    name, _, value = word.lstrip("-").partition("=")
    key = name.replace("-", "_")
    known = key in {option.path for option in all_options()}
    example = f"{key}={value or 'VALUE'}" if known else "KEY=VALUE"
    fix = f"options are written without dashes: {example}; orchestrator launch --help lists options and flags"
    return error("unknown-flag", word.partition("=")[0], f"there is no flag {word}", fix)


def did_you_mean(word: str, options: Sequence[str]) -> str:
    """``did you mean X? `` with the nearest of ``options``, or nothing where none is near."""
    near = get_close_matches(word, options, n=1, cutoff=0.5)
    return f"did you mean {near[0]}? " if near else ""


def _section(cls: type, values: Any, prefix: str, findings: list[Finding]) -> Any:
    if not isinstance(values, Mapping):
        findings.append(_wrong_type(prefix.rstrip("."), values, cls))
        return None
    types = fields_of(cls)
    findings.extend(_misplaced(prefix, key) or unknown_key(f"{prefix}{key}") for key in values if key not in types)
    return cls(
        **{name: _value(types[name], value, f"{prefix}{name}", findings) for name, value in values.items() if name in types}
    )


def _misplaced(prefix: str, key: Any) -> Finding | None:
    """The finding for the file of an overlay whose keys have come to lie under the overlay's own name."""
    overlay = prefix.rstrip(".") or str(key)
    if overlay not in OVERLAYS or (prefix and key != "hydra" and key not in fields_of(RunConfig)):
        return None
    message = f"the file of {overlay}= sets options under its own name, where there are none"
    return error("unknown-key", f"{prefix}{key}", message, "begin the file with the line: # @package _global_")


def _value(annotation: Any, value: Any, field: str, findings: list[Finding]) -> Any:
    """``value`` as the schema's type, unchanged in meaning; otherwise a finding and None."""
    inner, optional = split_optional(annotation)
    if is_section(inner):
        return _section(inner, value, f"{field}.", findings)
    if value == MISSING:
        findings.append(
            error("missing-value", field, f"{field} has no value; it takes {type_name(annotation)}", f"set it: {field}=...")
        )
        return None
    if value is None and optional:
        return None
    if get_origin(inner) is list and isinstance(value, (list, tuple)):
        (item_type,) = get_args(inner)
        return [_value(item_type, item, f"{field}[{position}]", findings) for position, item in enumerate(value)]
    if get_origin(inner) is dict and isinstance(value, Mapping):
        value_type = get_args(inner)[1]
        return {
            str(key): item if value_type is Any else _value(value_type, item, f"{field}.{key}", findings)
            for key, item in value.items()
        }
    return _scalar(annotation, inner, value, field, findings)


def _scalar(annotation: Any, inner: Any, value: Any, field: str, findings: list[Finding]) -> Any:
    if isinstance(inner, type) and issubclass(inner, StrEnum):
        if isinstance(value, str) and value in inner.__members__:
            return inner[value]
    elif inner is bool:
        if isinstance(value, bool):
            return value
    elif isinstance(value, bool):
        pass
    elif inner is int:
        # 5e8 is how people write bucket sizes; YAML reads a float, and nothing is lost
        if isinstance(value, (int, float)) and abs(value) <= LARGEST_INTEGER and float(value).is_integer():
            return int(value)
    elif inner is float:
        if isinstance(value, (int, float)) and abs(value) <= LARGEST_NUMBER:
            return float(value)
    elif inner is str and isinstance(value, (str, int, float)) and str(value).strip():
        return str(value)
    findings.append(_wrong_type(field, value, annotation))
    return None


def _wrong_type(field: str, value: Any, annotation: Any) -> Finding:
    inner, _ = split_optional(annotation)
    suggestion = ""
    if isinstance(inner, type) and issubclass(inner, StrEnum):
        suggestion = did_you_mean(str(value), list(inner.__members__))
    expected = type_name(annotation)
    shown = "null" if value is None else repr(value)
    if isinstance(value, (int, float)) and inner in (int, float) and not isinstance(value, bool):
        expected = f"{expected} of a possible size"
    return error("wrong-type", field, f"{field} is {shown}, but it takes {expected}", f"{suggestion}set {field} to {expected}")
