"""Tokens/s, TFLOP/s and MFU on one GPU: our worker against plain Hugging Face and DeepSpeed, on the same card in one run.

``python -m tests.gpu.throughput --output FILE`` trains Llama 3 1B, layers of Llama 3 8B (as many as fit twice) and GPT-2
1.5B in bf16 with ZeRO-1, each by the worker and by the script of ``tests.benchmarks.hand_written``. Both are on the card at
once and run in turn. With the default attention it takes about five minutes on an H200. ``--attention`` takes several
backends; one that is not installed or does not fit makes a line that says so. ``--dry`` runs the same with tiny models on
the CPU.

A machine without network needs the packages it lacks as wheels. Where there is a network, for that machine's Python (3.12)::

    DS_BUILD_OPS=0 python3.12 -m pip wheel --no-deps --wheel-dir wheels deepspeed hjson py-cpuinfo einops msgpack \\
        hydra-core omegaconf antlr4-python3-runtime==4.9.3 nvidia-ml-py

and there ``--wheels wheels``, which installs them into a temporary folder. DeepSpeed compiles its Adam there: nvcc and ninja
have to be on the PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MODELS = {
    "llama 1B": ("model=llama_3_1b", "data.sequence_length=2048", "training.train_micro_batch_size_per_gpu=4"),
    "llama 8B, 4 layers": (
        "model=llama_3_8b",
        "model.num_hidden_layers=4",
        "data.sequence_length=2048",
        "training.train_micro_batch_size_per_gpu=4",
    ),
    "gpt-2 1.5B": ("model=gpt2_xl", "data.sequence_length=1024", "training.train_micro_batch_size_per_gpu=4"),
}
COMMON = (
    "cluster.devices_per_host=1",
    "zero=stage1",
    "precision=bf16",
    "data=synthetic",
    "tracking=none",
    "checkpoint=none",
    "lr_scheduler=constant",
    "training.train_batch_size=null",
    "training.gradient_accumulation_steps=1",
    "training.max_steps=1000000",
)
TINY = (
    "model.vocab_size=256",
    "model.hidden_size=64",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=8",
    "data.sequence_length=32",
    "data.synthetic_tokens=10000",
    "training.train_micro_batch_size_per_gpu=2",
)
PACKAGES = ("torch", "deepspeed", "transformers", "flash-attn")


def with_wheels(wheels: Path, *, module: str = "tests.gpu.throughput") -> None:
    """Start again with the wheels of a folder installed where nothing else sees them."""
    site = tempfile.mkdtemp(prefix="throughput_site_")
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", site, *files]
    subprocess.run(pip, check=True)
    words = list(sys.argv[1:])
    at = words.index("--wheels")
    paths = [site, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, "-m", module, *words[:at], *words[at + 2 :]], environment)


def compared(words: list[str], directory: Path, *, dry: bool, pairs: int, block_seconds: float) -> dict[str, Any]:
    """Both sides of one model. The imports need the wheels."""
    from orchestrator.commands.launch import run_contents
    from orchestrator.config.load import load_config
    from orchestrator.planning.model_spec import model_spec_from_config
    from orchestrator.planning.plan import make_plan
    from orchestrator.run_dir import CommandWords, start_run
    from orchestrator.units import GIB
    from orchestrator.worker.metrics import throughput_of
    from tests.benchmarks.sides import SideFailedError, compare

    run_dir = directory / "run"
    config = load_config([*words, f"run_dir={run_dir}", f"data.cache_dir={directory / 'cache'}"])
    plan = make_plan(config, hosts=None, machine_memory_bytes=64 * GIB)
    if plan.layout is None or plan.verdict != "feasible":
        return {"failed": "; ".join(finding.message for finding in plan.findings)}
    attempt = start_run(run_dir, run_contents(config, plan, CommandWords()))
    environment = {"DS_ACCELERATOR": "cpu" if dry else "cuda", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    try:
        measured = compare(attempt.path, world_size=1, environment=environment, pairs=pairs, block_seconds=block_seconds)
    except SideFailedError as problem:
        return {"failed": str(problem)}
    throughput = throughput_of(config, model_spec_from_config(config.model), plan.layout)
    sides = zip(("ours", "theirs"), measured.seconds, measured.peak_bytes, strict=True)
    ratio = measured.time_ratio
    return {
        **{name: {"step_seconds": step, "peak_bytes": peak, **throughput.rates(step)} for name, step, peak in sides},
        "step_time_ratio": {"median": ratio.median, "lower": ratio.lower, "upper": ratio.upper, "pairs": measured.pairs},
    }


def lines(name: str, attention: str, result: dict[str, Any]) -> Iterator[str]:
    label = f"{name:18} {attention:17}"
    if "failed" in result:
        yield f"{label} failed: {result['failed'].strip().splitlines()[-1]}"
        return
    for side in ("ours", "theirs"):
        rates = result[side]
        mfu = f"{rates['mfu']:6.1%}" if "mfu" in rates else "     -"
        yield (
            f"{label} {side:6} {rates['tokens_per_second']:9.0f} tokens/s {rates['tflops_per_device']:8.2f} TFLOP/s  "
            f"MFU {mfu}  {rates['step_seconds']:.4f} s  {rates['peak_bytes'] / 2**30:6.2f} GiB"
        )
    ratio = result["step_time_ratio"]
    yield f"{label} time of a step, ours / theirs: {ratio['median']:.3f} [{ratio['lower']:.3f}, {ratio['upper']:.3f}]"


def versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", nargs="+", default=["sdpa"], choices=["sdpa", "flash_attention_2", "eager"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--cluster", default="dgx_h200", help="preset that gives the card's memory and its peak for the MFU")
    parser.add_argument("--micro-batch", type=int, help="sequences of a step, instead of the model's own number")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--block-seconds", type=float, default=2.0)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--dry", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    arguments = parser.parse_args()
    if arguments.wheels:
        with_wheels(arguments.wheels)

    found, results = dict(versions()), []
    print("  ".join(f"{package} {number}" for package, number in found.items()), flush=True)
    micro = [f"training.train_micro_batch_size_per_gpu={arguments.micro_batch}"] if arguments.micro_batch else []
    place = [] if arguments.dry else [f"cluster={arguments.cluster}"]
    for name in arguments.models:
        for attention in arguments.attention:
            own = [*MODELS[name], *(TINY if arguments.dry else ()), *micro, *place, *COMMON]
            with tempfile.TemporaryDirectory() as directory:
                result = compared(
                    [*own, f"model.attention_implementation={attention}"],
                    Path(directory),
                    dry=arguments.dry,
                    pairs=arguments.pairs,
                    block_seconds=arguments.block_seconds,
                )
            results.append({"model": name, "attention": attention, **result})
            print("\n".join(lines(name, attention, result)), flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps({"versions": found, "results": results}, indent=2) + "\n")
    sys.exit(1 if any("failed" in result for result in results) else 0)


if __name__ == "__main__":
    main()
