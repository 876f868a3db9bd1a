"""What one entry of the key table says: a key of a DeepSpeed JSON, or a block of keys.

The facts were read in DeepSpeed 0.16.9, 0.18.2, 0.19.6, 0.19.7 and 0.19.8 and are compared with the installed package by the
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any

from packaging.version import Version

READ_RELEASES = ("0.16.9", "0.18.2", "0.19.6", "0.19.7", "0.19.8")
"""The DeepSpeed releases the table was read from, oldest first."""
NEWEST_READ = READ_RELEASES[-1]


class Kind(StrEnum):
    """What a value is."""

    boolean = "true or false"
    integer = "a whole number"
    number = "a number"
    text = "text"
    texts = "a list of texts"
    items = "a list"
    mapping = "a mapping"
    anything = "any value"
    nothing = "nothing a JSON file can say"


class Reader(StrEnum):
    """How DeepSpeed reads a block."""

    model = "model"
    """A pydantic model: values are checked and converted, unknown keys refused, ``"auto"`` dropped."""
    plain = "plain"
    """Single look-ups: unknown keys are ignored in silence, values are kept as they are and fail where they are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. ``default`` is DeepSpeed's; ``minimum`` to ``below`` bound numbers, ``choices`` list the values of a text."""

    name: str
    kind: Kind
    default: Any = None
    optional: bool = False
    """Whether ``null`` is a value."""
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Other texts DeepSpeed takes for a choice, in lower case."""
    caseless: bool = False
    """Whether the case of a choice does not matter."""
    alias: str | None = None
    """A second name of the same field; both at once are refused."""
    deprecated_for: str | None = None
    """Path of the key that replaces this one, beside it."""
    added: str | None = None
    """First release read that has it; ``None`` = all of them."""
    removed: str | None = None
    """First release that refuses it."""
    earlier_default: tuple[str, Any] | None = None
    """(first release with ``default``, the default before)."""
    digits_only: bool = False
    """Whether a text is only converted when it is nothing but digits."""
    takes_auto: bool = False
    """Whether ``"auto"`` is a value of its own."""
    unused: str | None = None
    """Why the key does nothing, where DeepSpeed never reads it."""

    def default_in(self, version: Version) -> Any:
        """DeepSpeed's default in ``version``."""
        if self.earlier_default is not None and version < Version(self.earlier_default[0]):
            return self.earlier_default[1]
        return self.default

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the key, the one we write first."""
        return (self.name, self.alias) if self.alias else (self.name,)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A mapping of keys. ``optional``: ``null`` stands for it. ``free``: it may hold keys of the user's own."""

    name: str
    reader: Reader
    entries: tuple[Key | Block, ...] = ()
    optional: bool = False
    free: bool = False
    alias: str | None = None
    added: str | None = None
    removed: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the block, the one we write first."""
        return (self.name, self.alias) if self.alias else (self.name,)

    @cached_property
    def by_name(self) -> Mapping[str, Key | Block]:
        """Its entries by each of their names."""
        return MappingProxyType({name: entry for entry in self.entries for name in entry.names})

    def find(self, path: str) -> Key | Block | None:
        """The entry at a dotted path under this block, by any of its names."""
        entry: Key | Block = self
        for name in path.split("."):
            if not isinstance(entry, Block) or name not in entry.by_name:
                return None
            entry = entry.by_name[name]
        return entry


def boolean(name: str, default: bool | None, **facts: Any) -> Key:
    """A key that is true or false."""
    return Key(name=name, kind=Kind.boolean, default=default, **facts)


def integer(name: str, default: int | None, **facts: Any) -> Key:
    """A key that is a whole number."""
    return Key(name=name, kind=Kind.integer, default=default, **facts)


def number(name: str, default: float | None, **facts: Any) -> Key:
    """A key that is a number."""
    return Key(name=name, kind=Kind.number, default=default, **facts)


def text(name: str, default: str | None, **facts: Any) -> Key:
    """A key that is a text."""
    return Key(name=name, kind=Kind.text, default=default, optional=facts.pop("optional", default is None), **facts)


def texts(name: str, default: tuple[str, ...] | None, **facts: Any) -> Key:
    """A key that is a list of texts."""
    return Key(name=name, kind=Kind.texts, default=default, **facts)


def anything(name: str, default: Any = None, **facts: Any) -> Key:
    """A key DeepSpeed hands on without looking."""
    return Key(name=name, kind=Kind.anything, default=default, optional=True, **facts)


def model(name: str, *entries: Key | Block, **facts: Any) -> Block:
    """A block DeepSpeed reads with a pydantic model."""
    return Block(name=name, reader=Reader.model, entries=entries, **facts)


def plain(name: str, *entries: Key | Block, **facts: Any) -> Block:
    """A block DeepSpeed reads with single look-ups."""
    return Block(name=name, reader=Reader.plain, entries=entries, **facts)


def removed(entry: Block | Key, release: str) -> Any:
    """``entry`` as one that ``release`` refuses."""
    return replace(entry, removed=release)
