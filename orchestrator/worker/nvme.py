"""The run's own directory on the NVMe disk of this host: made at the start, refused if somebody else's, removed at the end.

And what is not on the disk when a run resumes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.run_dir import SWAP_OWNER, read_json, write_json
from orchestrator.worker.attempt import WorkerAttempt
from orchestrator.worker.progress import say


@contextmanager
def nvme_directory(attempt: WorkerAttempt) -> Iterator[None]:
    """The directory exists and is empty inside; nothing is left of it afterwards. Without NVMe offload nothing happens.

    All ranks enter together, after the process group is there. What an earlier attempt of the same run left, which was killed,
    is removed.

    Raises:
        ConfigurationError: the directory is there and not this run's, or cannot be made.
    """
    path = attempt.nvme_directory
    if path is None:
        yield
        return
    problems: list[str | None] = [None] * attempt.layout.world_size
    torch.distributed.all_gather_object(problems, _claim(path, attempt) if attempt.local_rank == 0 else None)
    found = [problem for problem in problems if problem is not None]
    if found:
        fix = "set offload.nvme_path to a folder on a local disk that this run may write to, or remove what is in the way"
        raise ConfigurationError([error("nvme-directory", "offload.nvme_path", problem, fix) for problem in found])
    try:
        yield
    finally:
        if attempt.local_rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def restore_host_state(engine: Any, checkpoint_dir: Path, tag: str) -> None:
    """Give the optimizer what a checkpoint of an NVMe optimizer holds beside its files on the disk.

    DeepSpeed brings back the files. It forgets the step count of Adam and the loss scale, does not know any more that the
    disk holds moments, and leaves the groups that are too small for the disk, which stay in host memory, as they began.
    """
    optimizer = engine.optimizer
    file = engine._get_zero_ckpt_name(str(checkpoint_dir), tag)
    saved = torch.load(file, map_location="cpu", weights_only=False)["optimizer_state_dict"]
    optimizer.loss_scaler = saved["loss_scaler"]
    # Parameters that every rank keeps whole are given up here and gathered again from the new partitions at the end.
    optimizer.checkpoint_event_prologue()
    # Saved under their place among all partitions, one parameter group after the other.
    order = sorted(range(len(optimizer.fp16_groups)), key=lambda group: optimizer.sub_group_to_group_id[group])
    for place, group in enumerate(order):
        partition = optimizer.fp32_partitioned_groups_flat[group]
        state = saved["optimizer_state_dict"]["state"][place]
        if optimizer._swappable_optimizer_subgroup(group):
            numel = optimizer.fp16_partitioned_groups_flat_numel[group]
            moments = {name: value.new_zeros(numel) for name, value in state.items() if torch.is_tensor(value)}
            optimizer.optimizer.state[partition] = state | moments
            # Names the files of the moments; the tensors have the size that this asks for, and are not needed after it.
            optimizer.optimizer_swapper._get_param_swap_info(partition).release_memory()
        else:
            optimizer.optimizer.state[partition] = state
            partition.data.copy_(saved["fp32_flat_groups"][group])
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
    optimizer.checkpoint_event_epilogue()


def _claim(path: Path, attempt: WorkerAttempt) -> str | None:
    """Make the directory; what prevents it, if something does."""
    owner = {"run_dir": str(attempt.run_dir), "attempt": attempt.number}
    try:
        if path.exists():
            if not _is_left_over(path, attempt):
                return f"{path} exists and was not made by an earlier attempt of this run: its files may be in use, or stale"
            say(f"removing {path}, left by an attempt of this run that was killed")
            shutil.rmtree(path)
        path.mkdir(parents=True)
        write_json(path / SWAP_OWNER, owner)
    except OSError as problem:
        return f"cannot make {path}: {problem.strerror}"
    return None


def _is_left_over(path: Path, attempt: WorkerAttempt) -> bool:
    try:
        owner = read_json(path / SWAP_OWNER)
    except (OSError, ValueError):
        return False
    return owner.get("run_dir") == str(attempt.run_dir) and owner.get("attempt", attempt.number) < attempt.number
