"""What the schema says of each option: its dotted path, type, default and documentation."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from orchestrator.config import calibration, data, planner, schema, speed, sweep, tracking, training
from orchestrator.config.schema import RunConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One leaf of the configuration."""

    path: str
    type: Any
    default: str
    documentation: str


def fields_of(cls: type) -> dict[str, Any]:
    """The fields of a schema dataclass and their resolved types."""
    return _hints(cls)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def is_section(annotation: Any) -> bool:
    """Whether a field holds further options."""
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """``int | None`` as ``(int, True)``; ``int`` as ``(int, False)``."""
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        assert len(members) == 1, f"the schema allows only X | None, not {annotation}"
        return members[0], True
    return annotation, False


def type_name(annotation: Any) -> str:
    """A type as users should read it: ``an integer``, ``one of a, b``, ``a list of numbers``."""
    inner, optional = split_optional(annotation)
    if isinstance(inner, type) and issubclass(inner, StrEnum):
        name = "one of " + ", ".join(member.value for member in inner)
    elif get_origin(inner) is list:
        name = f"a list, each {type_name(get_args(inner)[0])}"
    elif get_origin(inner) is dict or is_section(inner):
        name = "a mapping"
    else:
        name = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}[inner]
    return f"{name} or null" if optional else name


@cache
def all_options() -> tuple[Option, ...]:
    """Every leaf of ``RunConfig``, in the order of the schema."""
    return tuple(_walk(RunConfig, ""))


def free_mappings() -> list[str]:
    """Options whose keys the user chooses."""
    return [option.path for option in all_options() if get_origin(option.type) is dict]


def _walk(cls: type, prefix: str) -> Iterator[Option]:
    documentation = _field_documentation(cls.__name__)
    for field in dataclasses.fields(cls):
        annotation = fields_of(cls)[field.name]
        path = f"{prefix}{field.name}"
        if is_section(annotation):
            yield from _walk(annotation, f"{path}.")
        else:
            yield Option(path=path, type=annotation, default=_default(field), documentation=documentation[field.name])


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value: Any = field.default_factory()
    else:
        value = field.default
    if isinstance(value, list):
        return "[" + ", ".join(str(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _field_documentation(class_name: str) -> dict[str, str]:
    """The text under each field of a schema class; sections need none."""
    for module in (schema, data, training, tracking, sweep, planner, speed, calibration):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                return dict(_documented_fields(node))
    raise AssertionError(f"{class_name} is not in the schema")


def _documented_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            yield statement.target.id, str(following.value.value)
