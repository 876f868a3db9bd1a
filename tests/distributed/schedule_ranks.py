"""What the pipeline engine did in a step; runs in a rank, where DeepSpeed is."""

from __future__ import annotations

from pathlib import Path

from orchestrator.worker.attempt import read_attempt
from orchestrator.worker.bubble import bubble_fraction
from orchestrator.worker.data.reader import batch_reader
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.engine import build_engine, start_distributed
from orchestrator.worker.step import training_step


def executed_passes(attempt_dir: Path) -> tuple[list[tuple[str, int, int]], float | None]:
    """Kind, micro-batch and phase of every pass of this rank in the second step, in the order the engine came to them.

    And the bubble that was measured in both steps.

    Micro-batches reach a stage in their order, so the n-th forward pass of a phase is that of the n-th; a backward pass is
    that of the micro-batch which the buffer held last.
    """
    attempt = read_attempt(attempt_dir)
    data = find_data(attempt.config, model_vocab_size=attempt.model.vocab_size)
    start_distributed(attempt)
    reader = batch_reader(attempt.config, data, layout=attempt.layout, rank=attempt.rank)
    engine = build_engine(attempt, attempt.model)
    for step in range(2):
        training_step(engine, reader.training_step(step * attempt.layout.train_batch_size), attempt.layout)
    assert not any(timer.event_timers for timer in engine.timers.get_timers().values()), "times of past steps would pile up"
    next_micro_batch = [0, 0]
    held: dict[tuple[int, int], int] = {}
    passes = []
    for kind, buffer, phase in engine.executed:
        if kind == "forward":
            held[buffer, phase] = next_micro_batch[phase]
            next_micro_batch[phase] += 1
        passes.append((kind, held[buffer, phase], phase))
    return passes, bubble_fraction(engine)
