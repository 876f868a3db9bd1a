"""Attempt directories as ``launch`` makes them, for workers that tests start themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.commands.launch import run_contents
from orchestrator.config.load import load_config
from orchestrator.planning.plan import make_plan
from orchestrator.run_dir import METRICS, Attempt, CommandWords, read_json, resume_run, start_run
from orchestrator.units import GIB
from tests.distributed.ranks import run_ranks

WORKER = "orchestrator.worker.train:run"
TINY = (
    "data=synthetic",
    "tracking=none",
    "lr_scheduler=cosine",
    "precision=fp32",
    "model.name=tiny",
    "model.vocab_size=128",
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=4",
    "model.num_key_value_heads=2",
    "data.sequence_length=16",
    "data.synthetic_tokens=20000",
    "data.held_out_fraction=0.05",
    "training.train_batch_size=16",
    "training.train_micro_batch_size_per_gpu=4",
    "training.gradient_accumulation_steps=null",
    "training.evaluate_every=0",
    "training.evaluate_sequences=7",
    "training.max_steps=10",
    "optimizer.lr=1e-2",
    "lr_scheduler.warmup_steps=2",
    "checkpoint.save_at_end=false",
    "checkpoint.save_every=0",
)
"""A Llama that trains ten steps in about a second."""


def new_attempt(run_dir: Path, overrides: Iterable[str], *, world_size: int, resume_tag: str | None = None) -> Attempt:
    """The first attempt of a run, or with ``resume_tag`` the next."""
    own = (f"run_dir={run_dir}", f"data.cache_dir={run_dir.parent / 'cache'}", f"cluster.devices_per_host={world_size}")
    config = load_config([*TINY, *overrides, *own])
    plan = make_plan(config, hosts=None, machine_memory_bytes=64 * GIB)
    assert plan.verdict == "feasible", plan.findings
    contents = run_contents(config, plan, CommandWords())
    if resume_tag is None:
        return start_run(run_dir, contents)
    return resume_run(run_dir, contents, resume_tag=resume_tag)


def trained(run_dir: Path, *overrides: str, world_size: int, resume_tag: str | None = None) -> Attempt:
    """An attempt whose ranks have run to their end."""
    attempt = new_attempt(run_dir, overrides, world_size=world_size, resume_tag=resume_tag)
    run_ranks(WORKER, attempt.path, world_size=world_size, directory=attempt.path / "ranks")
    assert attempt.result is not None
    assert attempt.result["status"] == "completed"
    return attempt


def entries(attempt: Attempt, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in ``metrics.jsonl``."""
    # a line without its end is still being written
    lines = (attempt.path / METRICS).read_text().split("\n")[:-1]
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def curve(attempt: Attempt, name: str = "loss") -> list[float]:
    """A value of every training step."""
    return [entry[name] for entry in entries(attempt, "train")]


def failure(attempt: Attempt, rank: int) -> dict[str, Any]:
    """What a failed rank left."""
    return read_json(attempt.path / f"failure_rank_{rank}.json")


def largest_relative_difference(values: Iterable[float], expected: Iterable[float]) -> float:
    """Over two curves of equal length."""
    return max(abs(value - other) / abs(other) for value, other in zip(values, expected, strict=True))
