"""The worker, one process a device: ``python -m orchestrator.worker.train ATTEMPT_DIR``.

Reads nothing but the attempt directory and its place among the ranks (``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``,
``MASTER_ADDR``, ``MASTER_PORT``), which the launcher puts into the environment.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed

from orchestrator.errors import ConfigurationError
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.run_dir import METRICS, RESULT, write_json
from orchestrator.tracking.jsonl import JsonlTracker
from orchestrator.tracking.tracker import CompositeTracker, RunDescription, Tracker
from orchestrator.tracking.wandb import WandbTracker
from orchestrator.units import format_count
from orchestrator.worker.attempt import WorkerAttempt, read_attempt
from orchestrator.worker.checkpoint import Position, load_checkpoint
from orchestrator.worker.data.prepare import PreparedData, batch_reader, data_identity, prepare_data
from orchestrator.worker.engine import build_engine, start_distributed
from orchestrator.worker.failure import write_failure
from orchestrator.worker.loop import Training, train
from orchestrator.worker.metrics import throughput_of
from orchestrator.worker.nvme import nvme_directory
from orchestrator.worker.progress import say
from orchestrator.worker.result import attempt_result, summary


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run this process's part of the attempt named on the command line.

    Exits with 0 when it is done, 1 when it failed and 2 when no attempt is named.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m orchestrator.worker.train ATTEMPT_DIR", file=sys.stderr)
        sys.exit(2)
    for stop in (signal.SIGTERM, signal.SIGINT):
        # Python's own handlers wait for the next bytecode, and a rank inside a collective may never reach one.
        signal.signal(stop, signal.SIG_DFL)
    code = 0
    try:
        run(Path(words[0]))
    except ConfigurationError as refusal:
        for finding in refusal.findings:
            print(f"{finding.severity}: {finding.field}: {finding.message}; {finding.fix}", file=sys.stderr)
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # The destructors of a failed rank wait for peers that are gone, and those of a good one have been seen to abort.
    os._exit(code)


def run(attempt_dir: Path) -> None:
    """Run this process's part of an attempt; rank 0 leaves ``result.json``.

    Raises:
        Exception: whatever failed, after it was written to ``failure_rank_{RANK}.json``.
    """
    tracker: Tracker | None = None
    try:
        started = time.monotonic()
        attempt = read_attempt(attempt_dir)
        wandb = WandbTracker(attempt.config.tracking, run_id=attempt.wandb_id, say=say)
        tracker = CompositeTracker([JsonlTracker(attempt.path / METRICS), wandb]) if attempt.is_first else None
        spec = attempt.model
        # Before the process group: making tokens may take longer than a collective is allowed to.
        data = prepare_data(attempt.config, model_vocab_size=spec.vocab_size)
        start_distributed(attempt)
        with nvme_directory(attempt):
            result = _train(attempt, spec, data, tracker)
        # The engine is gone with its frame; what cycles keep alive has to go before the process group does.
        gc.collect()
        torch.distributed.destroy_process_group()
        seconds = time.monotonic() - started
        # Only now: closing a record may mean an upload, and no other rank has to wait for it.
        if tracker is not None:
            tracker.summary(summary(result))
            tracker.finish(failed=False)
            write_json(attempt_dir / RESULT, {**result, "seconds": seconds, "wandb": wandb.record})
    except BaseException as problem:
        write_failure(attempt_dir, problem)
        if tracker is not None:
            tracker.finish(failed=True)
        raise


def _train(attempt: WorkerAttempt, spec: ModelSpec, data: PreparedData, tracker: Tracker | None) -> dict[str, Any]:
    """Build, train and take down the engine; returns what ``result.json`` says of the training."""
    _require_equal_data(data)
    reader = batch_reader(attempt.config, data.token_file, layout=attempt.layout, rank=attempt.rank)
    engine = build_engine(attempt, spec)
    _say_model(attempt, spec)
    identity = data_identity(attempt.config, data.token_file)
    position = Position()
    if attempt.resume_tag is not None:
        position = load_checkpoint(engine, attempt, spec, identity)
        say(f"resumed from {attempt.resume_tag}: step {position.step}, {position.consumed_samples} sequences read")
    if tracker is not None:
        tracker.start(_description(attempt))
    training = Training(
        attempt=attempt,
        spec=spec,
        engine=engine,
        reader=reader,
        data_identity=identity,
        throughput=throughput_of(attempt.config, spec, attempt.layout),
        tracker=tracker,
    )
    result = attempt_result(training, data, train(training, position))
    torch.distributed.barrier()
    engine.destroy()
    return result


def _description(attempt: WorkerAttempt) -> RunDescription:
    return RunDescription(
        run_name=attempt.run_name,
        attempt_dir=attempt.path,
        config=attempt.config_values,
        plan=attempt.plan,
        ds_config=attempt.ds_config,
    )


def _require_equal_data(data: PreparedData) -> None:
    """Ranks on hosts with different text would train on different batches without noticing."""
    checksums: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(checksums, data.token_file.index.sha256)
    different = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
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


if __name__ == "__main__":
    main()
