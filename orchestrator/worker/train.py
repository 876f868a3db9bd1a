"""One rank's training from its start to its end: data, process group, engine, steps, result.

Whoever calls ``run`` has put the rank's place among the others into the environment, as the launcher does.
"""

from __future__ import annotations

import gc
import time
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch.distributed

from orchestrator.planning.model_spec import ModelSpec
from orchestrator.presence import Phase
from orchestrator.run_dir import RESULT, write_json
from orchestrator.tracking.description import describe
from orchestrator.tracking.measured import result_summary
from orchestrator.tracking.tracker import Tracker
from orchestrator.units import format_count
from orchestrator.worker.attempt import WorkerAttempt, read_attempt
from orchestrator.worker.checkpoint import Position, load_checkpoint
from orchestrator.worker.data.reader import batch_reader, data_identity
from orchestrator.worker.data.run_data import RunData, find_data
from orchestrator.worker.engine import build_engine, start_distributed
from orchestrator.worker.failure import write_failure
from orchestrator.worker.loop import Training, train
from orchestrator.worker.metrics import throughput_of
from orchestrator.worker.nvme import nvme_directory
from orchestrator.worker.out_of_memory import MemoryWitness
from orchestrator.worker.progress import ProgressSigns, say
from orchestrator.worker.result import attempt_result
from orchestrator.worker.step_profile import StepProfiles
from orchestrator.worker.stop import StopAgreement
from orchestrator.worker.tracking import tracking_of


def run(attempt_dir: Path, *, stop: Event | None = None) -> None:
    """Run this process's part of an attempt; rank 0 leaves ``result.json``.

    ``stop`` is set from outside when the run is to save and stop after the step in hand.

    Raises:
        Exception: whatever failed, after it was written to ``failure_rank_{RANK}.json``.
    """
    tracker: Tracker | None = None
    witness = MemoryWitness()
    try:
        started = time.monotonic()
        progress = ProgressSigns(attempt_dir)
        attempt = read_attempt(attempt_dir)
        tracking = tracking_of(attempt, waits=partial(progress.enter, Phase.end))
        tracker = tracking.tracker
        spec = attempt.model
        # Before the process group: making tokens may take longer than a collective is allowed to.
        progress.enter(Phase.data)
        data = find_data(attempt.config, model_vocab_size=spec.vocab_size, advanced=progress.data)
        progress.enter(Phase.build)
        start_distributed(attempt)
        with nvme_directory(attempt):
            result = _train(attempt, spec, data, tracker, progress, witness, stop or Event())
        progress.enter(Phase.end)
        # The engine is gone with its frame; what cycles keep alive has to go before the process group does.
        gc.collect()
        torch.distributed.destroy_process_group()
        seconds = time.monotonic() - started
        # Only now: closing a record may mean an upload, and no other rank has to wait for it.
        if tracker is not None:
            tracker.summary(result_summary(result))
            tracker.finish(failed=False)
        if attempt.is_first:
            write_json(attempt_dir / RESULT, {**result, "seconds": seconds, "wandb": tracking.wandb})
    except BaseException as problem:
        write_failure(attempt_dir, problem, memory=witness.at_failure(problem))
        if tracker is not None:
            tracker.finish(failed=True)
        raise


def _train(
    attempt: WorkerAttempt,
    spec: ModelSpec,
    data: RunData,
    tracker: Tracker | None,
    progress: ProgressSigns,
    witness: MemoryWitness,
    stop: Event,
) -> dict[str, Any]:
    """Build, train and take down the engine; returns what ``result.json`` says of the training."""
    _require_equal_data(data)
    reader = batch_reader(attempt.config, data, layout=attempt.layout, rank=attempt.rank)
    witness.engine = engine = build_engine(attempt, spec, advanced=partial(progress.enter, Phase.build))
    _say_model(attempt, spec)
    identity = data_identity(attempt.config, data)
    position = Position()
    if attempt.resume_tag is not None:
        progress.enter(Phase.resume)
        position = load_checkpoint(engine, attempt, spec, identity)
        say(f"resumed from {attempt.resume_tag}: step {position.step}, {position.consumed_samples} sequences read")
    if tracker is not None:
        tracker.start(describe(attempt.path))
    training = Training(
        attempt=attempt,
        spec=spec,
        engine=engine,
        reader=reader,
        data_identity=identity,
        throughput=throughput_of(attempt.config, spec, attempt.layout),
        tracker=tracker,
        progress=progress,
        stop=StopAgreement(stop, engine.device) if attempt.config.checkpoint.save_on_stop else None,
        profiles=StepProfiles(attempt.config.training.profile, attempt.path, rank=attempt.rank),
    )
    result = attempt_result(training, data, train(training, position))
    torch.distributed.barrier()
    witness.engine = None
    engine.destroy()
    return result


def _require_equal_data(data: RunData) -> None:
    """Ranks on hosts with different text would train on different batches without noticing."""
    identities: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(identities, data.identities)
    different = [rank for rank, identity in enumerate(identities) if identity != identities[0]]
    if different:
        raise RuntimeError(f"the tokens of ranks {different} differ from rank 0's: give every host the same text and tokenizer")


def _say_model(attempt: WorkerAttempt, spec: ModelSpec) -> None:
    layout, config = attempt.layout, attempt.config
    say(
        f"model {spec.name}: {format_count(spec.num_parameters)} parameters, {config.precision.dtype}, "
        f"ZeRO stage {config.zero.stage}, {layout.world_size} processes = {layout.pipeline_parallel_size} pipeline stages x "
        f"{layout.data_parallel_size} data parallel x {layout.tensor_parallel_size} tensor parallel; "
        f"batch {layout.train_batch_size} = {layout.train_micro_batch_size_per_gpu} micro x "
        f"{layout.gradient_accumulation_steps} accumulation x {layout.data_parallel_size} data parallel"
    )
