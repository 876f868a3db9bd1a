"""The checkpoints of a run: which are complete, which is the newest, which may go, and whether a run can resume from one.

A checkpoint is a folder ``global_step{N}`` with a manifest. The manifest is written last and lists the files, so a folder
without one is a save that never ended, and one that has lost a file is no checkpoint any more. The best is the one whose
manifest has the lowest held-out loss; the file ``best`` beside them names it for people.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.findings import Finding, error, info, warning

MANIFEST = "manifest.json"
BEST = "best"
"""The tag of the best checkpoint: the name of a file beside them, and a word for it."""
TAG_PATTERN = re.compile(r"global_step(\d+)")
DROPOUT_SUFFIXES = ("dropout", "pdrop")
"""How Hugging Face's names for dropout probabilities end: they shape no weight, and a resumed run may change them."""
_REMOVED = ".removed_"
"""How the names of folders begin that are being removed."""
SIZES = ("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds.

    ``step`` counts the optimizer steps taken, ``consumed_samples`` the sequences they read; ``layout`` has the keys of
    ``ParallelLayout.to_dict``; ``boundaries`` are the first layer of each pipeline stage and the number of layers;
    ``fixed_options`` are further options, by their dotted names, that its files were written under; ``hf_config`` is the
    complete Hugging Face config of the model; ``created`` is seconds since the epoch.
    """

    step: int
    consumed_samples: int
    layout: Mapping[str, int]
    boundaries: Sequence[int]
    zero_stage: int
    dtype: str
    model_name: str
    num_parameters: int
    fixed_options: Mapping[str, Any]
    hf_config: Mapping[str, Any]
    created: float
    held_out_loss: float | None = None
    """Measured after ``step`` steps; None if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint."""

    tag: str
    path: Path
    manifest: Manifest


def tag_of(step: int) -> str:
    """The name of the checkpoint after ``step`` optimizer steps."""
    return f"global_step{step}"


def write_manifest(tag_dir: Path, manifest: Manifest) -> None:
    """Declare the checkpoint in ``tag_dir`` complete, with the size of each of its files: the last act of a save."""
    names = (path for path in tag_dir.rglob("*") if path.is_file() and path.name[0] != ".")
    files = [path for path in names if path != tag_dir / MANIFEST]
    sizes = {str(path.relative_to(tag_dir)): path.stat().st_size for path in files}
    _write(tag_dir / MANIFEST, json.dumps({**asdict(manifest), "files": sizes}, indent=2) + "\n")


def record_held_out_loss(tag_dir: Path, loss: float) -> None:
    """Add to a complete checkpoint the loss that was measured after it was saved."""
    manifest = _read_manifest(tag_dir)
    if manifest is not None:
        write_manifest(tag_dir, replace(manifest, held_out_loss=loss))


def complete_checkpoints(checkpoint_dir: Path) -> list[Checkpoint]:
    """The complete checkpoints of a run, the oldest first. None if the folder does not exist."""
    found = []
    for path in checkpoint_dir.glob("global_step*"):
        manifest = _read_manifest(path)
        if TAG_PATTERN.fullmatch(path.name) and manifest is not None:
            found.append(Checkpoint(tag=path.name, path=path, manifest=manifest))
    return sorted(found, key=lambda checkpoint: checkpoint.manifest.step)


def newest(checkpoint_dir: Path) -> Checkpoint | None:
    """The complete checkpoint with the most steps."""
    found = complete_checkpoints(checkpoint_dir)
    return found[-1] if found else None


def best(checkpoint_dir: Path) -> Checkpoint | None:
    """The complete checkpoint with the lowest held-out loss, of equal ones the first; None if none was measured."""
    measured = [found for found in complete_checkpoints(checkpoint_dir) if found.manifest.held_out_loss is not None]
    return min(measured, key=lambda checkpoint: checkpoint.manifest.held_out_loss or 0.0, default=None)


def unfinished_bytes(checkpoint_dir: Path) -> int:
    """What lies in the folders that are no checkpoint, of a save or a removal that goes on; it changes while it gets on."""
    total = 0
    for folder in checkpoint_dir.glob("*"):
        if folder.is_dir() and not (folder / MANIFEST).exists():
            for path in folder.rglob("*"):
                with suppress(OSError):
                    total += path.stat().st_size
    return total


def clear_tag(tag_dir: Path) -> None:
    """Make room for a save. The manifest goes first, so that a half-removed checkpoint is none.

    Files that somebody else has open on a network disk stay until they are closed, under another name.

    Raises:
        OSError: it cannot be moved away.
    """
    (tag_dir / MANIFEST).unlink(missing_ok=True)
    if tag_dir.exists():
        tag_dir.replace(tag_dir.with_name(f"{_REMOVED}{tag_dir.name}.{time.time_ns()}"))
    for removed in tag_dir.parent.glob(f"{_REMOVED}*"):
        shutil.rmtree(removed, ignore_errors=True)


def remove_old(checkpoint_dir: Path, keep: int, *, keep_best: bool = False) -> list[str]:
    """Remove all but the newest ``keep`` complete checkpoints (0 keeps all), and return the tags removed.

    ``keep_best``: the best stays as well, and the file ``best`` names it.
    """
    complete = complete_checkpoints(checkpoint_dir)
    kept = best(checkpoint_dir) if keep_best else None
    if kept is not None:
        _write(checkpoint_dir / BEST, kept.tag + "\n")
    old = [checkpoint for checkpoint in (complete[:-keep] if keep > 0 else []) if checkpoint != kept]
    for checkpoint in old:
        clear_tag(checkpoint.path)
    return [checkpoint.tag for checkpoint in old]


def resume_findings(
    manifest: Manifest,
    *,
    layout: Mapping[str, int],
    boundaries: Sequence[int],
    zero_stage: int,
    dtype: str,
    model_name: str,
    num_parameters: int,
    fixed_options: Mapping[str, Any],
    hf_config: Mapping[str, Any],
    max_steps: int,
) -> list[Finding]:
    """What stands between a checkpoint and a run that wants to go on from it; errors are what cannot be loaded.

    ``hf_config`` is the complete Hugging Face config of the run's model.
    """
    findings = _model_findings(manifest, model_name, num_parameters, hf_config)
    findings += [
        _size_finding(name, manifest.layout[name], layout[name]) for name in SIZES if manifest.layout[name] != layout[name]
    ]
    if not findings and list(manifest.boundaries) != list(boundaries):
        findings.append(_boundary_finding(manifest.boundaries, boundaries))
    findings += [
        _option_finding(name, manifest.fixed_options[name], value)
        for name, value in fixed_options.items()
        if manifest.fixed_options.get(name, value) != value
    ]
    if manifest.zero_stage != zero_stage:
        message = f"the checkpoint was written with ZeRO stage {manifest.zero_stage}, this run has stage {zero_stage}"
        findings.append(error("resume-zero-stage", "zero.stage", message, f"zero=stage{manifest.zero_stage}"))
    if manifest.dtype != dtype:
        message = f"the checkpoint was written in {manifest.dtype}, this run is in {dtype}"
        findings.append(error("resume-precision", "precision.dtype", message, f"precision.dtype={manifest.dtype}"))
    saved_batch, batch = manifest.layout["train_batch_size"], layout["train_batch_size"]
    if saved_batch != batch:
        message = f"the checkpoint's steps read {saved_batch} sequences each, this run's read {batch}"
        fix = f"training.train_batch_size={saved_batch} if the loss curve has to continue"
        findings.append(warning("resume-batch", "training.train_batch_size", message, fix))
    if manifest.step >= max_steps:
        message = f"the checkpoint has {manifest.step} steps, the run ends at {max_steps}: nothing is left to train"
        fix = f"training.max_steps above {manifest.step} trains on"
        findings.append(info("resume-steps", "training.max_steps", message, fix))
    return findings


def _model_findings(manifest: Manifest, model_name: str, num_parameters: int, hf_config: Mapping[str, Any]) -> list[Finding]:
    if manifest.num_parameters != num_parameters:
        message = f"the checkpoint holds {manifest.num_parameters} parameters, the model has {num_parameters}"
        fix = f"resume with the model of the checkpoint: {manifest.model_name}"
        return [error("resume-model", "model.name", message, fix)]
    different = _differences(manifest.hf_config, hf_config)
    if different:
        message = f"the model is another than the checkpoint's: {'; '.join(different)}"
        fix = "resume with the model.* options, or the config.json behind model.config_path, that the run was started with"
        return [error("resume-model", "model.name", message, fix)]
    if manifest.model_name != model_name:
        message = f"the checkpoint was written by a model named {manifest.model_name!r}, this one is {model_name!r}"
        return [warning("resume-model", "model.name", message, "make sure that it is the same model")]
    return []


def _differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Entries of two Hugging Face configs that are not the same, dropout aside."""
    names = [name for name in {**saved, **wanted} if not name.endswith(DROPOUT_SUFFIXES)]
    return [
        f"{name} was {saved.get(name)!r} and is {wanted.get(name)!r}" for name in names if saved.get(name) != wanted.get(name)
    ]


def _size_finding(name: str, saved: int, wanted: int) -> Finding:
    message = f"the checkpoint was written with {name}={saved}, this run has {wanted}"
    return error("resume-layout", f"parallelism.{name}", message, f"resume on the devices for parallelism.{name}={saved}")


def _option_finding(name: str, saved: Any, wanted: Any) -> Finding:
    message = f"the checkpoint was written with {name}={saved}, this run has {wanted}"
    return error("resume-option", name, message, f"{name}={saved}")


def _boundary_finding(saved: Sequence[int], wanted: Sequence[int]) -> Finding:
    folded = " of a folded pipeline (dual_pipe_v)" if len(saved) > len(wanted) else ""
    message = (
        f"the checkpoint was written with pipeline stages{folded} cut at layers {list(saved)}, this run cuts at {list(wanted)}"
    )
    fix = f"parallelism.partition_method=explicit parallelism.partition_boundaries={list(saved)}, and the schedule of the run"
    return error("resume-partition", "parallelism.partition_method", message, fix)


def _read_manifest(tag_dir: Path) -> Manifest | None:
    """The manifest of a folder; None if it has none that is whole, or if a file it lists is missing or cut short."""
    try:
        values = json.loads((tag_dir / MANIFEST).read_text(encoding="utf-8"))
        if any((tag_dir / name).stat().st_size != size for name, size in values["files"].items()):
            return None
        needed = {field.name: values[field.name] for field in fields(Manifest) if field.default is MISSING}
        return Manifest(**needed, held_out_loss=values.get("held_out_loss"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    """Readers see all of it or the file before it, also after a loss of power."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
