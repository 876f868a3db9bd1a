"""``export``: a checkpoint of a run as a Hugging Face folder, made by a process that has torch."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.checkpoints.catalogue import BEST, Checkpoint, best, complete_checkpoints
from orchestrator.checkpoints.export_request import RESULT, ExportRequest
from orchestrator.commands.result import INTERRUPTED, OK, RUN_FAILED, CommandResult
from orchestrator.config.enums import Precision
from orchestrator.config.load import run_config_from_dict
from orchestrator.config.schema import RunConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error, has_error, warning
from orchestrator.launch.command import LaunchCommand
from orchestrator.launch.processes import Ended, meaning, supervise
from orchestrator.report import text
from orchestrator.run_dir import checkpoint_dir, read_json
from orchestrator.tokens.manifest import TOKENIZER
from orchestrator.units import format_bytes

HELP = """Write a checkpoint of a run as a Hugging Face folder: config, sharded safetensors, tokenizer. No GPU needed.

The run in run_dir says what its model is; only run_dir, export.* and output may be given.

Examples:
  orchestrator export run_dir=runs/books
  orchestrator export run_dir=runs/books export.tag=global_step500 export.output=/models/books
  orchestrator export run_dir=runs/books export.tag=best
  orchestrator export run_dir=runs/books export.output=/models/books-fp32 export.dtype=fp32"""

WORKER = "orchestrator.worker.export"
LOG = "export.log"
_OWN_WORDS = ("run_dir", "output", "export", "command")
_BYTES = {Precision.fp32: 4, Precision.bf16: 2, Precision.fp16: 2}
_GB = 10**9
Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedExport:
    """An export that may start: nothing has been written yet."""

    checkpoint: Checkpoint
    request: ExportRequest
    stop_seconds: float
    remarks: Sequence[Finding]


def word_findings(overrides: Sequence[str]) -> list[Finding]:
    """Refuses words about anything but the export: the run's own configuration decides the rest."""
    keys = [override.split("=", 1)[0].lstrip("+~") for override in overrides]
    fix = "leave it out; export takes run_dir, export.* and output"
    return [
        error("export-words", key, f"{key} is decided by the run, whose checkpoint is exported as it is", fix)
        for key in keys
        if key.split(".")[0].split("@")[0] not in _OWN_WORDS
    ]


def prepare(config: RunConfig) -> PreparedExport:
    """Find the checkpoint and check that the folder can be written.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    run_dir = _absolute(config.run_dir)
    output = run_dir / "export" if config.export.output is None else _absolute(config.export.output)
    checkpoint, findings = _checkpoint(run_dir, config.export.tag)
    if config.export.max_shard_gb <= 0:
        message = f"export.max_shard_gb={config.export.max_shard_gb} is no size of a file"
        findings.append(error("export-shard", "export.max_shard_gb", message, "choose a size above 0"))
    if checkpoint is None:
        raise ConfigurationError([*findings, *_output_findings(output, num_bytes=0)])
    dtype = config.export.dtype or Precision(checkpoint.manifest.dtype)
    findings += _output_findings(output, num_bytes=checkpoint.manifest.num_parameters * _BYTES[dtype])
    if has_error(findings):
        raise ConfigurationError(findings)
    if dtype is Precision.fp32 and checkpoint.manifest.dtype != Precision.fp32 and checkpoint.manifest.zero_stage == 0:
        message = f"the run computed in {checkpoint.manifest.dtype} without ZeRO: the exported fp32 values are those, widened"
        findings.append(warning("export-masters", "export.dtype", message, "train with zero.stage=1 to export fp32 weights"))
    tokenizer, remarks = _tokenizer(run_dir)
    request = ExportRequest(
        checkpoint=str(checkpoint.path),
        output=str(output),
        dtype=dtype.value,
        max_shard_bytes=int(config.export.max_shard_gb * _GB),
        tokenizer=None if tokenizer is None else str(tokenizer),
    )
    remarks = [*findings, *remarks]
    return PreparedExport(checkpoint=checkpoint, request=request, stop_seconds=config.launcher.stop_seconds, remarks=remarks)


def start(prepared: PreparedExport, echo: Echo) -> CommandResult:
    """Run the export to its end; ``echo`` receives its progress. The log stays where the result says if it fails."""
    scratch = Path(tempfile.mkdtemp(prefix="orchestrator-export-"))
    request_file = scratch / "request.json"
    prepared.request.write(request_file)
    command = LaunchCommand(
        argv=(sys.executable, "-m", WORKER, str(request_file)),
        # nothing is computed: the devices stay free for those who train
        environment={"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "RANK": "0"},
        working_directory=Path.cwd(),
    )
    outcome = supervise(command, log_file=scratch / LOG, echo=echo, stop_seconds=prepared.stop_seconds)
    result = _ended(outcome, prepared, scratch)
    if result.exit_code != RUN_FAILED:
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _absolute(path: str) -> Path:
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path's raises for unknown users


def _checkpoint(run_dir: Path, tag: str | None) -> tuple[Checkpoint | None, list[Finding]]:
    """The complete checkpoint that was asked for."""
    folder = checkpoint_dir(run_dir)
    if not (run_dir / "request" / "config.json").is_file():
        message = f"{run_dir} holds no run"
        return None, [error("export-run", "run_dir", message, "name the directory of a run: run_dir=DIR")]
    complete = complete_checkpoints(folder)
    if not complete:
        message = f"{folder} holds no complete checkpoint"
        return None, [error("export-checkpoint", "run_dir", message, "name the directory of a run that saved one")]
    if tag is None:
        return complete[-1], []
    if tag == BEST and best(folder) is None:
        message = f"no checkpoint in {folder} has a held-out loss, so none is the best"
        fix = f"name one: {', '.join(checkpoint.tag for checkpoint in complete)}"
        return None, [error("export-checkpoint", "export.tag", message, fix)]
    chosen = best(folder) if tag == BEST else next((found for found in complete if found.tag == tag), None)
    if chosen is not None:
        return chosen, []
    state = "is not complete" if tag and Path(tag).name == tag and (folder / tag).exists() else "is not there"
    message = f"the checkpoint {tag!r} {state} in {folder}"
    fix = f"complete are {', '.join(checkpoint.tag for checkpoint in complete)}"
    return None, [error("export-checkpoint", "export.tag", message, fix)]


def _output_findings(output: Path, *, num_bytes: int) -> Iterator[Finding]:
    """What keeps ``output`` from being made with ``num_bytes`` in it."""
    if os.path.lexists(output):
        message = f"{output} exists, and nothing is overwritten"
        yield error("export-output", "export.output", message, "name a folder that does not exist: export.output=DIR")
        return
    try:
        place = next(path for path in output.parents if path.exists())
        reason = "is not a folder" if not place.is_dir() else "" if os.access(place, os.W_OK) else "cannot be written to"
        free = shutil.disk_usage(place).free
    except OSError as problem:
        yield error("export-output", "export.output", f"{output} cannot be made: {problem.strerror}", "name another folder")
        return
    if reason:
        yield error("export-output", "export.output", f"{output} cannot be made: {place} {reason}", "name another folder")
    elif free < num_bytes:
        message = f"{output} needs {format_bytes(num_bytes)}, and {place} has {format_bytes(free)} free"
        yield error("export-output", "export.output", message, "make room, or name a folder on another disk")


def _tokenizer(run_dir: Path) -> tuple[Path | None, list[Finding]]:
    """The tokenizer of the run: the one it was given, or the one an attempt has reported."""
    config = run_config_from_dict(read_json(run_dir / "request" / "config.json"))
    reported = [read_json(path).get("tokenizer") for path in sorted((run_dir / "attempts").glob("*/result.json"))]
    path = config.data.tokenizer_path or next((name for name in reported if name), None)
    if path is None and (reported or config.data.source.value == "synthetic"):
        return None, []
    file = None if path is None else Path(path) / TOKENIZER if Path(path).is_dir() else Path(path)
    if file is not None and file.is_file():
        return file, []
    message = f"{path} has gone" if path else "no attempt of the run has ended, so its tokenizer is not known"
    return None, [
        warning("export-tokenizer", "data.tokenizer_path", f"no tokenizer is exported: {message}", "copy it to the folder")
    ]


def _ended(outcome: Ended, prepared: PreparedExport, scratch: Path) -> CommandResult:
    request = prepared.request
    base: dict[str, Any] = {
        "checkpoint": request.checkpoint,
        "output": request.output,
        "findings": [finding.to_dict() for finding in prepared.remarks],
    }
    if outcome.interrupted:
        report: list[RenderableType] = [Text("interrupted; nothing was exported")]
        return CommandResult(exit_code=INTERRUPTED, payload={"status": "interrupted", **base}, text=report)
    if outcome.exit_code == 0 and (scratch / RESULT).exists():
        result = read_json(scratch / RESULT)
        payload = {"status": "completed", **base, "step": prepared.checkpoint.manifest.step, "dtype": request.dtype, **result}
        line = (
            f"{request.output}: {prepared.checkpoint.tag}, {result['num_tensors']} tensors in {request.dtype}, "
            f"{format_bytes(result['num_bytes'])} in {len(result['files'])} files"
        )
        return CommandResult(exit_code=OK, payload=payload, text=[*text.findings_report(prepared.remarks), Text(line)])
    failures = [read_json(path) for path in scratch.glob("failure_rank_*.json")]
    reason = failures[0]["error"] if failures else meaning(outcome.exit_code)
    log = scratch / LOG
    payload = {"status": "failed", "reason": reason, "exit_code": outcome.exit_code, "log": str(log), **base}
    return CommandResult(exit_code=RUN_FAILED, payload=payload, text=_failure_report(reason, log))


def _failure_report(reason: str, log: Path) -> list[RenderableType]:
    return [Text.assemble(("the export failed: ", "bold red"), reason), Text(f"log: {log}")]
