"""Predicted against measured memory on one GPU: allocated, reserved and what the device shows.

``python -m tests.gpu.memory_check --output FILE`` runs each configuration in a process of its own, so that one that runs out
of memory ends nothing else, and writes a row for each as soon as it has ended. It starts none after ``--seconds``, so that all
of it takes less than eight minutes. ``--dry`` runs the same with tiny models on the CPU, where all three figures are the
resident set.

A machine without network needs wheels: see ``tests.gpu.throughput``, which says how they are made; ``--wheels`` installs them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "gpt2, ZeRO-1": ("model=gpt2", "zero=stage1", "precision=bf16"),
    "gpt2 1.5B, no ZeRO": ("model=gpt2_xl", "zero=stage0", "precision=bf16"),
    "gpt2 1.5B, ZeRO-1, fp16": ("model=gpt2_xl", "zero=stage1", "precision=fp16"),
    "gpt2 1.5B, ZeRO-2, full": ("model=gpt2_xl", "zero=stage2", "precision=bf16", "activation_checkpointing=full"),
    "llama 1B, ZeRO-1": ("model=llama_3_1b", "zero=stage1", "precision=bf16"),
    "llama 1B, ZeRO-1, full": ("model=llama_3_1b", "zero=stage1", "precision=bf16", "activation_checkpointing=full"),
    "llama 1B, ZeRO-1, every 4": (
        "model=llama_3_1b",
        "zero=stage1",
        "precision=bf16",
        "activation_checkpointing.policy=every_k_layers",
        "activation_checkpointing.interval=4",
    ),
    "llama 1B, ZeRO-1, selective, eager": (
        "model=llama_3_1b",
        "zero=stage1",
        "precision=bf16",
        "activation_checkpointing.policy=selective",
        "model.attention_implementation=eager",
    ),
    "llama 1B, ZeRO-2, fp16": ("model=llama_3_1b", "zero=stage2", "precision=fp16"),
    "llama 1B, ZeRO-3": ("model=llama_3_1b", "zero=stage3", "precision=bf16"),
    "llama 1B, ZeRO-2, optimizer on cpu": ("model=llama_3_1b", "zero=stage2", "precision=bf16", "offload=optimizer_cpu"),
    "llama 1B, ZeRO-3, all on cpu": ("model=llama_3_1b", "zero=stage3", "precision=bf16", "offload=all_cpu"),
    "llama 8B, 8 layers, ZeRO-1": ("model=llama_3_8b", "model.num_hidden_layers=8", "zero=stage1", "precision=bf16"),
    "llama 7B, ZeRO-3, in bf16, full": (
        "model=llama_2_7b",
        "zero=stage3",
        "precision=bf16",
        "precision.grad_accum_dtype=bf16",
        "activation_checkpointing=full",
        "training.train_micro_batch_size_per_gpu=1",
    ),
}
COMMON = (
    "cluster.devices_per_host=1",
    "data=synthetic",
    "data.sequence_length=1024",
    "tracking=none",
    "checkpoint=none",
    "lr_scheduler=constant",
    "lr_scheduler.warmup_steps=0",
    "training.train_batch_size=null",
    "training.gradient_accumulation_steps=2",
    "training.max_steps=2",
    "training.evaluate_sequences=1",
)
TINY = (
    "model.vocab_size=256",
    "model.hidden_size=256",
    "model.num_hidden_layers=4",
    "model.num_attention_heads=32",
    "data.sequence_length=32",
    "data.synthetic_tokens=10000",
)
KINDS = ("allocated", "reserved", "device")
LIMIT_SECONDS = 180.0
POLL_SECONDS = 0.02


def overrides(name: str, *, cluster: str, dry: bool) -> list[str]:
    """The words of a configuration; those given last are in force."""
    own = CONFIGURATIONS[name]
    if not dry:
        return [f"cluster={cluster}", "training.train_micro_batch_size_per_gpu=4", *COMMON, *own]
    tiny = [word.replace("fp16", "bf16") for word in own if not word.startswith("model.num_hidden_layers")]
    return ["training.train_micro_batch_size_per_gpu=2", *COMMON, *tiny, *TINY]


def measured_row(name: str, words: list[str], directory: Path, *, dry: bool) -> dict[str, Any]:
    """One configuration: what was predicted and what was measured, bytes. The imports need the wheels."""
    from orchestrator.commands.launch import run_contents
    from orchestrator.config.load import load_config
    from orchestrator.launch.machine import memory_limit_bytes
    from orchestrator.planning.plan import make_plan
    from orchestrator.run_dir import CommandWords, start_run

    words = [*words, f"run_dir={directory / 'run'}", f"data.cache_dir={directory / 'cache'}"]
    config = load_config(words)
    plan = make_plan(config, hosts=None, machine_memory_bytes=memory_limit_bytes())
    row: dict[str, Any] = {"name": name, "overrides": words[:-2], "verdict": plan.verdict}
    if plan.memory is None or plan.verdict == "invalid":
        return {**row, "outcome": "invalid", "reason": "; ".join(finding.message for finding in plan.findings)}
    (predicted,) = plan.memory.device
    row |= {
        "predicted": {kind: getattr(predicted, f"{kind}_bytes") for kind in KINDS},
        "phase": predicted.phase.value,
        "components": dict(predicted.components),
        "capacity_bytes": predicted.capacity_bytes,
    }
    attempt = start_run(directory / "run", run_contents(config, plan, CommandWords()))
    with device_peak(dry=dry) as peak:
        row |= _run(attempt.path, directory / "log", dry=dry)
    if attempt.result is not None:
        (rank,) = attempt.result["memory"]["ranks"]
        on_device = rank["measured_bytes"] if dry else peak["bytes"]
        row["measured"] = dict(zip(KINDS, (rank["allocated_bytes"], rank["measured_bytes"], on_device), strict=True))
    elif attempt.failures:
        reason = attempt.failures[0]["error"]
        row |= {"outcome": "oom" if "OutOfMemory" in reason else "failed", "reason": reason}
    return row


def _run(attempt_dir: Path, log: Path, *, dry: bool) -> dict[str, Any]:
    """The worker of an attempt, alone; its outcome and how long it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = {**os.environ, **place, "MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu" if dry else "cuda"}
    started = time.monotonic()
    with log.open("w") as output:
        command = [sys.executable, "-m", "orchestrator.worker.start", str(attempt_dir)]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            code: int | str = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = f"no end within {LIMIT_SECONDS:.0f} s"
    end = {} if code == 0 else {"reason": f"{code}: {log.read_text(errors='replace')[-400:]}"}
    return {"outcome": "fits" if code == 0 else "failed", "seconds": round(time.monotonic() - started, 1), **end}


@contextmanager
def device_peak(*, dry: bool) -> Iterator[dict[str, int]]:
    """The most that the first device shows inside, beyond what it showed before."""
    peak = {"bytes": 0}
    if dry:
        yield peak
        return
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    before, done = pynvml.nvmlDeviceGetMemoryInfo(device).used, threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            peak["bytes"] = max(peak["bytes"], pynvml.nvmlDeviceGetMemoryInfo(device).used - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def line(row: Mapping[str, Any]) -> str:
    """A row of the table: GiB predicted / measured = ratio, of each kind."""
    if "measured" not in row:
        return f"{row['name']:36} {row['outcome']:8} {row.get('reason', '').strip().splitlines()[-1:]}"
    figures = []
    for kind in KINDS:
        predicted, measured = row["predicted"][kind] / 2**30, row["measured"][kind] / 2**30
        figures.append(f"{kind} {predicted:7.2f} / {measured:7.2f} = {predicted / max(measured, 1e-9):5.2f}")
    return f"{row['name']:36} {row['outcome']:8} {'   '.join(figures)}   {row['phase']}, {row['seconds']} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", nargs="+", default=list(CONFIGURATIONS), choices=CONFIGURATIONS, metavar="NAME")
    parser.add_argument("--cluster", default="dgx_h200", help="preset that gives the card's memory")
    parser.add_argument("--seconds", type=float, default=420.0, help="start nothing after so long")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--dry", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--output", type=Path, help="file for the rows as JSON")
    arguments = parser.parse_args()
    if arguments.wheels:
        from tests.gpu.throughput import with_wheels

        with_wheels(arguments.wheels, module="tests.gpu.memory_check")
    started, rows = time.monotonic(), []
    for name in arguments.configurations:
        if time.monotonic() - started > arguments.seconds:
            rows.append({"name": name, "outcome": "not run", "reason": f"{arguments.seconds} s are over"})
        else:
            words = overrides(name, cluster=arguments.cluster, dry=arguments.dry)
            with tempfile.TemporaryDirectory() as directory:
                rows.append(measured_row(name, words, Path(directory), dry=arguments.dry))
        print(line(rows[-1]), flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    sys.exit(1 if any(row["outcome"] in ("failed", "invalid") for row in rows) else 0)


if __name__ == "__main__":
    main()
