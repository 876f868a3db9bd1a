"""How fast the planner estimates beside llm-analysis: ``python -m tests.benchmarks.llm_analysis_speed DIRECTORY``.

Puts llm-analysis, which needs old versions of other packages, into an environment of its own in DIRECTORY, and has both
estimate layouts of a GPT of 175B on 1,024 A100, memory and time, in a warm process. Prints estimates a second of processor
time and the ratio. llm-analysis looks at one device and knows no pipeline bubble, ZeRO-3 traffic, offload or host memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.planning.cost.many import step_seconds_many
from orchestrator.planning.cost.step_time import step_time
from orchestrator.planning.cost.training_step import training_step
from orchestrator.planning.memory.many import estimate_many
from tests.benchmarks.estimate_speed import gpt3_estimator, random_layouts

VERSION = "0.2.2"
SECONDS = 3.0
NUM_LAYOUTS = 100_000
THEIRS = f"""
import contextlib, io, logging, time
logging.disable(logging.CRITICAL)
from llm_analysis.analysis import LLMAnalysis
from llm_analysis.config import ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name, get_model_config_by_name
model, gpu = get_model_config_by_name("megatron-lm-175b"), get_gpu_config_by_name("a100-sxm-80gb")
dtype = get_dtype_config_by_name("w16a16e16")
count, start = 0, time.process_time()
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    while time.process_time() - start < {SECONDS}:
        for tp, pp in ((8, 8), (8, 16), (8, 32), (8, 64)):
            parallelism = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=1024 // tp // pp, sp_size=tp)
            LLMAnalysis(model, gpu, dtype, parallelism).training(
                batch_size_per_gpu=1, gradient_accumulation_steps=32, seq_len=2048, total_num_tokens=1e9
            )
            count += 1
print(count / (time.process_time() - start))
"""


def main() -> None:
    """Print the rates and their ratios."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.benchmarks.llm_analysis_speed DIRECTORY")
    environment = Path(sys.argv[1]).absolute() / "llm_analysis"
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"llm-analysis=={VERSION}"], check=True)
    answer = subprocess.run([str(python), "-c", THEIRS], capture_output=True, text=True, check=True, timeout=300).stdout
    theirs = float(answer.split()[-1])
    estimator, partition = gpt3_estimator()
    step, layouts = training_step(estimator), random_layouts(NUM_LAYOUTS)
    single = _rate(lambda: (estimator.estimate(partition), step_time(step, partition)), 1)
    arrays = _rate(lambda: (estimate_many(estimator, layouts), step_seconds_many(estimator, layouts)), NUM_LAYOUTS)
    rows = (("llm-analysis", theirs), ("ours, one by one", single), (f"ours, {NUM_LAYOUTS} in arrays", arrays))
    for name, rate in rows:
        sys.stdout.write(f"{name:24s} {rate:12,.0f} estimates a second   {rate / theirs:8.2f} of llm-analysis\n")


def _rate(estimate: Callable[[], object], count: int) -> float:
    """Estimates a second of processor time."""
    estimate()
    done, start = 0, time.process_time()
    while time.process_time() - start < SECONDS:
        estimate()
        done += count
    return done / (time.process_time() - start)


if __name__ == "__main__":
    main()
