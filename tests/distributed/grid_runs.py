"""Trains cases of the grid, holds each against a plain torch loop, and makes the table of them."""

from __future__ import annotations

import platform
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.distributed.attempts import curve, new_attempt, trained
from tests.distributed.grid import Case, num_processes, options, overrides, sample
from tests.distributed.ranks import run_ranks

LOSS_TOLERANCE = 1e-4
NORM_TOLERANCE = 1e-3
SHAPE = ("model.num_hidden_layers", "model.tie_word_embeddings", "model.attention_implementation")
"""What a plain loop depends on."""
HEADINGS = (
    "tp x pp x dp",
    "SP",
    "schedule",
    "partition",
    "ZeRO",
    "offload",
    "recompute",
    "micro x acc.",
    "tied",
    "attention",
    "loss",
    "norm",
    "s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Largest difference over ten steps, over the largest value; and how long the case took."""

    loss: float
    norm: float
    seconds: float

    @property
    def is_small(self) -> bool:
        """Whether the case trains like the plain loop."""
        return self.loss < LOSS_TOLERANCE and self.norm < NORM_TOLERANCE


class PlainLoops:
    """The curves of the plain loop, one a shape of the model; every step of theirs clips."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._curves: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}

    def of(self, case: Case) -> tuple[list[float], list[float]]:
        """Loss and gradient norm of every step of the model that ``case`` trains."""
        values = options(case)
        words = tuple(f"{field}={values[field]}" for field in SHAPE)
        if words not in self._curves:
            place = self._directory / f"plain{len(self._curves)}"
            common = [word for word in overrides(case) if not word.startswith(tuple(values))]
            attempt = new_attempt(place / "run", (*common, *words), world_size=1)
            function = "tests.distributed.plain_loop:train_plainly"
            (curves,) = run_ranks(function, attempt.path, world_size=1, directory=attempt.path / "ranks")
            self._curves[words] = curves
        return self._curves[words]


def difference(case: Case, loops: PlainLoops, run_dir: Path) -> Difference:
    """Train a case and compare it."""
    losses, norms = loops.of(case)
    started = time.monotonic()
    attempt = trained(run_dir, *overrides(case), world_size=num_processes(case))
    return Difference(
        loss=over_largest(curve(attempt), losses),
        norm=over_largest(curve(attempt, "grad_norm"), norms),
        seconds=time.monotonic() - started,
    )


def over_largest(values: list[float], expected: list[float]) -> float:
    """The largest difference of two curves over the largest value."""
    differences = [abs(value - other) for value, other in zip(values, expected, strict=True)]
    return max(differences) / max(map(abs, expected))


def row(case: Case, found: Difference | None) -> tuple[str, ...]:
    """A line of the table; None for a case that did not come to its end."""
    values = {field.rpartition(".")[2]: value for field, value in options(case).items()}
    sizes = [values[f"{axis}_parallel_size"] for axis in ("tensor", "pipeline", "data")]
    accumulation = values["gradient_accumulation_steps"]
    is_pipeline = sizes[1] > 1
    figures = ("failed", "", "") if found is None else (f"{found.loss:.1e}", f"{found.norm:.1e}", f"{found.seconds:.0f}")
    return (
        " x ".join(map(str, sizes)),
        _yes(values["sequence_parallel"]),
        str(values["schedule"]) if is_pipeline else "-",
        str(values["partition_method"]) if is_pipeline else "-",
        str(values["stage"]),
        _offload(values),
        _recompute(values),
        f"{32 // (accumulation * sizes[2])} x {accumulation}",
        _yes(values["tie_word_embeddings"]),
        str(values["attention_implementation"]),
        *figures,
    )


def write_table(size: int, file: Path) -> bool:
    """Train ``size`` cases and write the table, line by line; whether all of them train like the plain loop."""
    rows, bad, started = [], 0, time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        loops = PlainLoops(Path(directory))
        for number, case in enumerate(sample(size)):
            try:
                found: Difference | None = difference(case, loops, Path(directory) / f"case{number}" / "run")
            except AssertionError as problem:
                print(problem)
                found = None
            bad += found is None or not found.is_small
            rows.append(row(case, found))
            print(f"{number + 1}/{size}  {'  '.join(rows[-1])}", flush=True)
            file.write_text(_document(rows, size=size, bad=bad, seconds=time.monotonic() - started))
    return bad == 0


def _document(rows: list[tuple[str, ...]], *, size: int, bad: int, seconds: float) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "deepspeed", "transformers"))
    lines = [
        "# Layouts that train alike",
        "",
        "`make test-grid`: ten steps in fp32 of a tiny Llama with random ignore masks, clipping in every step. Of each case",
        "the largest difference of loss and gradient norm to a plain torch loop in one process, over the largest value, and",
        f"its seconds. Limits: loss {LOSS_TOLERANCE:g}, norm {NORM_TOLERANCE:g}. The first cases have every pair of values",
        "that can stand together; the others are drawn at random, always the same.",
        "",
        f"{len(rows)} of {size} cases, {bad} outside the limits, {seconds / 60:.0f} minutes, "
        f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {versions}, CPU.",
        "",
        _line(HEADINGS),
        _line(["---"] * len(HEADINGS)),
        *map(_line, rows),
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _offload(values: dict[str, Any]) -> str:
    ratio = values["optimizer_ratio"]
    parts = {"optimizer": values["optimizer_device"], "parameters": values["param_device"]}
    named = [f"{part} {device}" for part, device in parts.items() if device != "none"]
    return ", ".join(named).replace("cpu", f"cpu {ratio}", int(ratio < 1)) or "-"


def _recompute(values: dict[str, Any]) -> str:
    policy = str(values["policy"])
    named = policy if policy != "every_k_layers" else f"every {values['interval']}"
    further = [name for name in ("partition_activations", "cpu_checkpointing") if values[name]]
    return ", ".join([named, *(name.split("_")[0] for name in further)]) if policy != "none" else "-"
