"""A close look at chosen steps of chosen ranks: PyTorch's trace, and the history of CUDA's allocations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed
from deepspeed.accelerator import get_accelerator
from torch.profiler import ProfilerActivity, profile

from orchestrator.config.training import ProfileConfig
from orchestrator.worker.progress import say

PROFILE = "profile"
"""The folder in the attempt's directory."""
MOST_ALLOCATIONS = 1_000_000
"""Allocations and releases that a memory snapshot holds; of more, the latest."""


class StepProfiles:
    """The profiles of one rank, ``profile/rank_RANK_step_STEP.*`` in the attempt's directory.

    ``.trace.json.gz`` is for Perfetto or ``chrome://tracing``, ``.memory.pickle`` for https://pytorch.org/memory_viz.
    """

    def __init__(self, config: ProfileConfig, attempt_dir: Path, *, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._folder = attempt_dir / PROFILE
        self._recorded = False

    @property
    def folder(self) -> Path | None:
        """Where the files of all ranks lie; None if no chosen step has been taken."""
        return self._folder if self._recorded else None

    def of_step(self, step: int) -> AbstractContextManager[None]:
        """Around step number ``step``, counted from 1, on every rank; costs nothing in other steps.

        The files are written behind it, and all ranks wait for them: the next step's time is its own.
        """
        records = self._config.ranks and (self._config.trace or self._config.memory)
        return self._record(step) if records and step in self._config.steps else nullcontext()

    @contextmanager
    def _record(self, step: int) -> Iterator[None]:
        with ExitStack() as stack:
            if self._rank in self._config.ranks:
                self._folder.mkdir(exist_ok=True)
                self._enter(stack, self._folder / f"rank_{self._rank}_step_{step}")
            yield
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        self._recorded = True
        say(f"step {step}  profile of ranks {', '.join(map(str, sorted(self._config.ranks)))}: {self._folder}")

    def _enter(self, stack: ExitStack, file: Path) -> None:
        trace, memory = self._config.trace, self._config.memory
        if get_accelerator().device_name() == "cuda":
            if memory:
                stack.enter_context(_memory_snapshot(file.with_suffix(".memory.pickle")))
            if trace:
                activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
                stack.enter_context(_trace(file.with_suffix(".trace.json.gz"), activities, memory=False))
        else:
            stack.enter_context(_trace(file.with_suffix(".trace.json.gz"), [ProfilerActivity.CPU], memory=memory))


@contextmanager
def _trace(file: Path, activities: list[ProfilerActivity], *, memory: bool) -> Iterator[None]:
    """``memory``: with every allocation and release."""
    with profile(activities=activities, profile_memory=memory) as recording:
        yield
    recording.export_chrome_trace(str(file))


@contextmanager
def _memory_snapshot(file: Path) -> Iterator[None]:
    """Written too when the step fails: whoever looks at memory looks for what filled it."""
    torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)
