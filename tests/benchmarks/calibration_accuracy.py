"""How well five short runs on this CPU predict the steps of eight other layouts.

``python -m tests.benchmarks.calibration_accuracy DIRECTORY`` trains what DIRECTORY lacks, fits the five, predicts the eight
from the preset, and prints each with its error, the median and the worst: at most 15 % and 30 %. ``--most-seconds`` starts no
run after so long; the next call goes on. ``--fit-only`` reads what is there. Figures of a busy machine are those of its load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from orchestrator.commands.finished_runs import read_run
from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config

MEDIAN_GATE, WORST_GATE = 0.15, 0.30
MODEL = (
    "model.hidden_size=256",
    "model.intermediate_size=704",
    "model.num_hidden_layers=4",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=4",
    "model.vocab_size=4096",
    "data.sequence_length=128",
)
COMMON = (
    "experiment=smoke",
    *MODEL,
    "data.synthetic_tokens=200000",
    "checkpoint=none",
    "training.max_steps=10",
    "training.evaluate_sequences=4",
    "training.train_batch_size=null",
    "lr_scheduler=constant",
)
Layout = Sequence[str]


def layout(
    *words: str, zero: int, processes: int = 2, micro_batch: int = 4, accumulation: int = 1, recompute: bool = False
) -> Layout:
    """The overrides of a layout."""
    return (
        f"zero.stage={zero}",
        f"cluster.devices_per_host={processes}",
        f"training.train_micro_batch_size_per_gpu={micro_batch}",
        f"training.gradient_accumulation_steps={accumulation}",
        f"activation_checkpointing.policy={'full' if recompute else 'none'}",
        *words,
    )


FITTED: Mapping[str, Layout] = {
    "zero1": layout(zero=1),
    "zero0_one_process": layout(zero=0, processes=1, micro_batch=8),
    "zero3_accumulated": layout(zero=3, micro_batch=2, accumulation=4),
    "zero2_recomputed": layout(zero=2, micro_batch=16, recompute=True),
    "tensor_2": layout("parallelism.tensor_parallel_size=2", zero=1, micro_batch=8),
}
PREDICTED: Mapping[str, Layout] = {
    "zero0": layout(zero=0, micro_batch=8),
    "zero1_one_process": layout(zero=1, processes=1, micro_batch=16),
    "zero1_accumulated": layout(zero=1, micro_batch=8, accumulation=4),
    "zero2": layout(zero=2, micro_batch=2, accumulation=2),
    "zero3_large": layout(zero=3, micro_batch=16),
    "zero3_recomputed": layout(zero=3, micro_batch=8, recompute=True),
    "tensor_2_recomputed": layout("parallelism.tensor_parallel_size=2", zero=0, micro_batch=4, accumulation=2, recompute=True),
    "pipeline_2": layout("parallelism.pipeline_parallel_size=2", zero=1, micro_batch=4, accumulation=4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A layout that was predicted."""

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


def orchestrator(*words: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=directory,
        env={**os.environ, "WANDB_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def train(directory: Path, *, most_seconds: float) -> bool:
    """Train what is missing; whether everything is there now."""
    started = time.monotonic()
    for name, words in (FITTED | PREDICTED).items():
        if list((directory / name).glob("attempts/*/result.json")):
            continue
        if time.monotonic() - started > most_seconds:
            return False
        # what an earlier call was killed in
        shutil.rmtree(directory / name, ignore_errors=True)
        ended = orchestrator("launch", *COMMON, *words, f"run_dir={name}", directory=directory)
        if ended.returncode != 0:
            sys.exit(f"{name} failed:\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}")
        print(f"trained {name}: {read_run(directory / name).measured.seconds:.4f} s a step", flush=True)
    return True


def predicted_seconds(words: Layout, config_dir: Path) -> float:
    """Seconds of a step by the preset in ``config_dir``."""
    plan = plan_run(load_config([*COMMON, "cluster=calibrated", *words], config_dir=config_dir))
    assert plan.time is not None, (words, plan.time_unknown, plan.findings)
    return plan.time.step_seconds


def predictions(directory: Path) -> Iterator[Predicted]:
    """The layouts of ``PREDICTED``, from the preset in ``directory``."""
    for name, words in PREDICTED.items():
        measured = read_run(directory / name).measured.seconds
        yield Predicted(name=name, measured=measured, predicted=predicted_seconds(words, directory / "conf.d"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--most-seconds", type=float, default=3600.0)
    parser.add_argument("--fit-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    directory = arguments.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    if not arguments.fit_only and not train(directory, most_seconds=arguments.most_seconds):
        print("not all runs are there yet: call again")
        return 3
    ended = orchestrator("calibrate", *FITTED, "calibration.name=calibrated", directory=directory)
    if ended.returncode != 0:
        sys.exit(ended.stdout + ended.stderr)
    entries = list(predictions(directory))
    errors = [abs(entry.error) for entry in entries]
    if arguments.json:
        layouts = {entry.name: {"measured": entry.measured, "predicted": entry.predicted} for entry in entries}
        print(json.dumps({"median": median(errors), "worst": max(errors), "layouts": layouts}))
    else:
        print(ended.stdout)
        for entry in entries:
            print(f"{entry.name:22} measured {entry.measured:.4f} s  predicted {entry.predicted:.4f} s  {entry.error:+.1%}")
        print(f"median error {median(errors):.1%} (gate {MEDIAN_GATE:.0%}), worst {max(errors):.1%} (gate {WORST_GATE:.0%})")
    return 0 if median(errors) <= MEDIAN_GATE and max(errors) <= WORST_GATE else 1


if __name__ == "__main__":
    sys.exit(main())
