"""Where the ranks of a hung run stand: their stacks, read back and grouped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.presence import STACKS

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<name>.+)$')
_OWN = "/orchestrator/"
_WAITING = "/torch/distributed/"
_RUNPY = "<frozen runpy>"
_START = "_run_module_as_main"
"""At the bottom of a main thread's stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A line that a rank is in."""

    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({'/'.join(Path(self.file).parts[-2:])}:{self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Ranks that stand at the same place. ``frames`` has the innermost first."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]

    @property
    def waits_for_others(self) -> bool:
        """Whether they are inside a collective: then others hold them up."""
        return any(_WAITING in frame.file for frame in self.frames)

    @property
    def place(self) -> str:
        """The innermost line, and the innermost one of ours, or of the user's own script."""
        if not self.frames:
            return "nowhere"
        script = self._script
        own = next((frame for frame in self.frames if (frame.file == script if script else _OWN in frame.file)), None)
        top = self.frames[0]
        return str(top) if own in (None, top) else f"{top}, called from {own}"

    @property
    def _script(self) -> str | None:
        """The file of a script of the user's own, which stands just inside of what runs it; None in our training."""
        names = [frame.name for frame in self.frames]
        if "run_path" not in names:
            return None
        runner = next((index for index, frame in enumerate(self.frames) if frame.file == _RUNPY), 0)
        return self.frames[runner - 1].file if runner > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``stacks`` in ``outcome.json``."""
        return {"ranks": list(self.ranks), "place": self.place}


def main_stack(text: str) -> tuple[Frame, ...]:
    """The main thread's frames in what ``faulthandler`` wrote of all threads."""
    threads = [_frames(part) for part in re.split(r"(?m)^(?:Current thread|Thread) 0x", text)[1:]]
    started = [frames for frames in threads if any(frame.name == _START for frame in frames)]
    return (started or threads or [()])[-1]


def stack_groups(attempt: Path) -> list[StackGroup]:
    """The ranks that have left their stacks, by where they stand: those that wait for no others and small groups first."""
    standing: dict[tuple[Frame, ...], list[int]] = {}
    for path in (attempt / STACKS).glob("*.txt"):
        with suppress(OSError, ValueError):
            rank = int(path.stem)
            if text := path.read_text(errors="replace"):
                standing.setdefault(main_stack(text), []).append(rank)
    groups = [StackGroup(ranks=tuple(sorted(ranks)), frames=frames) for frames, ranks in standing.items()]
    return sorted(groups, key=lambda group: (group.waits_for_others, len(group.ranks), group.ranks))


def ranks_with_stacks(attempt: Path) -> set[int]:
    """The ranks that have left theirs so far."""
    return {rank for group in stack_groups(attempt) for rank in group.ranks}


def await_stacks(attempt: Path, ranks: Iterable[int]) -> None:
    """Make room for them, empty. A network disk shows new files of other hosts late, and what is written into known ones soon.

    Raises:
        OSError: the disk takes nothing.
    """
    (attempt / STACKS).mkdir(exist_ok=True)
    for rank in ranks:
        (attempt / STACKS / f"{rank}.txt").write_text("")


def _frames(text: str) -> tuple[Frame, ...]:
    found = (_FRAME.match(line) for line in text.splitlines())
    return tuple(Frame(file=match["file"], line=match["line"], name=match["name"].strip()) for match in found if match)


def describe(groups: Sequence[StackGroup]) -> str:
    """Where the odd ones stand, in one line."""
    return "; ".join(f"rank {', '.join(map(str, group.ranks))} in {group.place}" for group in groups)
