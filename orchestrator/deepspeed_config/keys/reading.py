"""What DeepSpeed makes of a value, and what its author meant."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator.deepspeed_config.keys.entry import Key, Kind, Reader

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})
_INTEGER_TEXT = re.compile(r"\s*[+-]?\d+(_\d+)*(\.0*)?\s*", re.ASCII)
_LARGEST = 2**63 - 1


class Taken(StrEnum):
    """How DeepSpeed takes a value."""

    exactly = "exactly"
    """As it is written."""
    converted = "converted"
    """As another value, the one that was meant."""
    refused = "refused"
    """Not at all: it stops at the start."""
    unchecked = "unchecked"
    """As it is, which is not what the key is for: it fails later, or does something else."""


class Fault(StrEnum):
    """What is wrong with a value."""

    kind = "kind"
    """It is not of the kind of the key."""
    size = "size"
    """It is a number out of range."""
    choice = "choice"
    """It is none of the choices."""


class Unclear:
    """The type of ``UNCLEAR``."""


UNCLEAR = Unclear()
"""Stands for a meaning that cannot be told for certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value as DeepSpeed takes it. ``meant`` is the value its author meant, or ``UNCLEAR``."""

    taken: Taken
    meant: Any
    fault: Fault | None = None
    wanted: str = ""
    """What the key takes, for a message."""

    @property
    def is_sound(self) -> bool:
        """Whether DeepSpeed goes on with the value that was meant."""
        return self.taken in (Taken.exactly, Taken.converted)


def read_value(key: Key, value: Any, reader: Reader) -> Reading:
    """Read ``value`` of ``key`` in a block that DeepSpeed reads with ``reader``. ``"auto"`` is not looked at here."""
    if value is None and key.optional:
        return Reading(taken=Taken.exactly, meant=None)
    meant, direct = _meaning(key, value)
    wanted = describe(key)
    bad = Taken.refused if reader is Reader.model else Taken.unchecked
    if isinstance(meant, Unclear):
        silent = isinstance(value, bool) and key.kind in (Kind.integer, Kind.number)
        return Reading(taken=Taken.unchecked if silent else bad, meant=UNCLEAR, fault=Fault.kind, wanted=wanted)
    fault = _fault(key, meant)
    if fault is not None:
        return Reading(taken=bad, meant=UNCLEAR, fault=fault, wanted=wanted)
    if direct:
        return Reading(taken=Taken.exactly, meant=meant)
    taken = Taken.converted if _converts(key, value, reader) else bad
    return Reading(taken=taken, meant=meant, fault=Fault.kind, wanted=wanted)


def describe(key: Key) -> str:
    """What ``key`` takes, in words: ``"a whole number of at least 1"``."""
    if key.choices:
        listed = ", ".join(str(choice) for choice in key.choices)
        return f"{key.kind.value} of {listed}" if key.kind is Kind.texts else f"one of {listed}"
    bounds = [
        f"at least {_plain(key.minimum)}" if key.minimum is not None else "",
        f"above {_plain(key.above)}" if key.above is not None else "",
        f"at most {_plain(key.maximum)}" if key.maximum is not None else "",
        f"below {_plain(key.below)}" if key.below is not None else "",
    ]
    stated = " and ".join(bound for bound in bounds if bound)
    return f"{key.kind.value} of {stated}" if stated else key.kind.value


def _meaning(key: Key, value: Any) -> tuple[Any, bool]:
    """(the value that is meant or ``UNCLEAR``, whether it is written as DeepSpeed documents it)."""
    match key.kind:
        case Kind.boolean:
            return _boolean(value)
        case Kind.integer:
            return _integer(value)
        case Kind.number:
            return _number(value)
        case Kind.text:
            return _text(key, value)
        case Kind.texts:
            return _texts(value)
        case Kind.items:
            return (value, True) if isinstance(value, list) else (UNCLEAR, False)
        case Kind.mapping:
            return (value, True) if isinstance(value, dict) else (UNCLEAR, False)
        case Kind.nothing:
            return UNCLEAR, False
        case Kind.anything:
            return value, True


def _boolean(value: Any) -> tuple[Any, bool]:
    if isinstance(value, bool):
        return value, True
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value), False
    if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE, False
    return UNCLEAR, False


def _integer(value: Any) -> tuple[Any, bool]:
    if isinstance(value, bool):
        return UNCLEAR, False
    if isinstance(value, int):
        return (value, True) if abs(value) <= _LARGEST else (UNCLEAR, False)
    number, _ = _number(value)
    if isinstance(number, Unclear) or not float(number).is_integer() or abs(number) > _LARGEST:
        return UNCLEAR, False
    # 5e8 is how bucket sizes are written, and nothing is lost; 1.0 is no way to write a count
    return int(number), isinstance(value, float) and number >= 1000


def _number(value: Any) -> tuple[Any, bool]:
    if isinstance(value, bool):
        return UNCLEAR, False
    if isinstance(value, (int, float)):
        return (value, True) if math.isfinite(value) else (UNCLEAR, False)
    if isinstance(value, str) and value.isascii():
        try:
            number = float(value)
        except ValueError:
            return UNCLEAR, False
        if math.isfinite(number):
            return int(value) if re.fullmatch(r"\s*[+-]?\d+\s*", value) else number, False
    return UNCLEAR, False


def _text(key: Key, value: Any) -> tuple[Any, bool]:
    if not isinstance(value, str):
        return UNCLEAR, False
    if not key.choices:
        return value, True
    if value in key.choices:
        return value, True
    if value in key.spellings:
        return key.spellings[value], True
    if key.caseless:
        folded = {str(choice).lower(): choice for choice in key.choices}
        return folded.get(value.lower(), value), True
    return value, True


def _texts(value: Any) -> tuple[Any, bool]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value, True
    return ([value], False) if isinstance(value, str) and value else (UNCLEAR, False)


def _fault(key: Key, meant: Any) -> Fault | None:
    """What keeps a value of the right kind from being one of the key's."""
    if key.choices:
        chosen = meant if isinstance(meant, list) else [meant]
        return None if all(choice in key.choices for choice in chosen) else Fault.choice
    if key.kind in (Kind.integer, Kind.number):
        inside = (
            (key.minimum is None or meant >= key.minimum)
            and (key.above is None or meant > key.above)
            and (key.maximum is None or meant <= key.maximum)
            and (key.below is None or meant < key.below)
        )
        return None if inside else Fault.size
    return None


def _converts(key: Key, value: Any, reader: Reader) -> bool:
    """Whether DeepSpeed itself comes to what was meant by a value that is written otherwise."""
    if reader is Reader.plain:
        # kept as it is: a whole float counts like the integer, 1 like true; a text does not
        return not isinstance(value, str)
    if key.kind is Kind.boolean:
        return not isinstance(value, str) or value.lower() in _TRUE | _FALSE
    if key.kind is Kind.integer and isinstance(value, str):
        return bool(_INTEGER_TEXT.fullmatch(value)) and not (key.digits_only and "." in value)
    return key.kind is not Kind.texts or key.name in ("classes", "names", "name_suffixes")


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
