"""Calibration on one GPU: what five short runs, and a measurement, say of three other runs.

``python -m tests.gpu.calibrate --output FILE`` trains eight layouts of Llama 3 1B and of layers of Llama 3 8B for ``--steps``
steps, each through ``orchestrator launch``, fits five of them, measures the device, and writes predicted and measured seconds
of the other three: by the preset as it is, after the fit, and from the measurement. No run starts after ``--seconds``.
``--dry`` does the same with tiny models on the CPU. A machine without network needs wheels (see ``tests.gpu.throughput``):
``--wheels``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SMALL = ("model=llama_3_1b", "data.sequence_length=2048")
WIDE = ("model=llama_3_8b", "model.num_hidden_layers=4", "data.sequence_length=2048")
FITTED: dict[str, tuple[str, ...]] = {
    "1b_zero1": (*SMALL, "zero=stage1", "training.train_micro_batch_size_per_gpu=4"),
    "1b_small_batch": (*SMALL, "zero=stage1", "training.train_micro_batch_size_per_gpu=1"),
    "1b_zero3": (*SMALL, "zero=stage3", "training.train_micro_batch_size_per_gpu=2"),
    "8b_zero1": (*WIDE, "zero=stage1", "training.train_micro_batch_size_per_gpu=4"),
    "1b_offloaded": (*SMALL, "zero=stage2", "offload=optimizer_cpu", "training.train_micro_batch_size_per_gpu=4"),
}
PREDICTED: dict[str, tuple[str, ...]] = {
    "1b_recomputed": (*SMALL, "zero=stage1", "activation_checkpointing=full", "training.train_micro_batch_size_per_gpu=8"),
    "8b_zero2": (*WIDE, "zero=stage2", "training.train_micro_batch_size_per_gpu=2"),
    "1b_accumulated": (
        *SMALL,
        "zero=stage1",
        "training.train_micro_batch_size_per_gpu=2",
        "training.gradient_accumulation_steps=4",
    ),
}
COMMON = (
    "cluster.devices_per_host=1",
    "precision=bf16",
    "data=synthetic",
    "tracking=none",
    "checkpoint=none",
    "lr_scheduler=constant",
    "training.train_batch_size=null",
    "training.gradient_accumulation_steps=1",
    "training.evaluate_sequences=4",
)
TINY = (
    "model.vocab_size=256",
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=8",
    "data.sequence_length=32",
    "data.synthetic_tokens=20000",
)


def orchestrator(*words: str, directory: Path) -> dict[str, Any]:
    """The JSON that a command printed; its own words if it failed."""
    ended = subprocess.run(
        [sys.executable, "-m", "orchestrator", *words, "output=json"],
        cwd=directory,
        env={**os.environ, "WANDB_MODE": "disabled"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        answer = {"output": ended.stdout[-2000:] + ended.stderr[-2000:]}
    return {"exit_code": ended.returncode, **answer}


def step_seconds(words: tuple[str, ...], *cluster: str, directory: Path) -> float | None:
    """The predicted step."""
    time_entry = orchestrator("validate", *words, *cluster, directory=directory).get("time")
    return None if time_entry is None else float(time_entry["step_seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cluster", default="dgx_h200")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--wheels", type=Path)
    arguments = parser.parse_args()
    if arguments.wheels is not None:
        from tests.gpu.throughput import with_wheels

        with_wheels(arguments.wheels, module="tests.gpu.calibrate")
    started = time.monotonic()
    preset = "local_cpu" if arguments.dry else arguments.cluster
    common = (*COMMON, f"training.max_steps={arguments.steps}")
    report: dict[str, Any] = {"cluster": preset, "runs": {}, "predicted": {}}
    with tempfile.TemporaryDirectory(prefix="calibrate_") as folder:
        directory = Path(folder)
        for name, own in (FITTED | PREDICTED).items():
            if time.monotonic() - started > arguments.seconds:
                report["runs"][name] = "not started: out of time"
                continue
            words = (*own, *(TINY if arguments.dry else ()), *common, f"cluster={preset}")
            ended = orchestrator("launch", *words, f"run_dir={name}", directory=directory)
            report["runs"][name] = ended.get("receipt") or ended
            arguments.output.write_text(json.dumps(report, indent=2))
        done = [name for name in FITTED if isinstance(report["runs"][name], dict) and "step" in report["runs"][name]]
        report["fit"] = orchestrator("calibrate", *done, "calibration.name=fitted", directory=directory)
        measure = ("measure=true", "calibration.name=measured", f"cluster={preset}", "cluster.devices_per_host=1")
        report["measured"] = orchestrator("calibrate", *measure, directory=directory)
        for name, own in PREDICTED.items():
            words = (*own, *(TINY if arguments.dry else ()), *common)
            report["predicted"][name] = {
                "preset": step_seconds(words, f"cluster={preset}", directory=directory),
                **{
                    source: step_seconds(words, f"cluster={source}", "--config-dir", "conf.d", directory=directory)
                    for source in ("fitted", "measured")
                },
            }
        arguments.output.write_text(json.dumps(report, indent=2))
    return 0 if report["fit"]["exit_code"] == 0 and report["measured"]["exit_code"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
