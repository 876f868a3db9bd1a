"""Exports a checkpoint and uses the folder as anybody would; runs in a rank."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from orchestrator.checkpoints.export_request import ExportRequest
from orchestrator.planning.layout import ParallelLayout
from orchestrator.worker.attempt import read_attempt
from orchestrator.worker.data.reader import batch_reader
from orchestrator.worker.data.run_data import find_data
from orchestrator.worker.data.sequences import IGNORED
from orchestrator.worker.export import export

SMALL_FILES = 20_000


def export_folder(checkpoint: Path, output: Path, dtype: str) -> dict[str, Tensor]:
    """The tensors of the model that ``AutoModelForCausalLM`` loads from the exported folder."""
    export(
        ExportRequest(checkpoint=str(checkpoint), output=str(output), dtype=dtype, max_shard_bytes=SMALL_FILES, tokenizer=None)
    )
    model, loading = AutoModelForCausalLM.from_pretrained(output, dtype="auto", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def held_out_loss_of_folder(attempt_dir: Path, folder: Path) -> float:
    """What the attempt measured at its end, measured with the Hugging Face model in ``folder``."""
    attempt = read_attempt(attempt_dir)
    config = attempt.config
    alone = ParallelLayout(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        train_batch_size=1,
        train_micro_batch_size_per_gpu=1,
        gradient_accumulation_steps=1,
    )
    data = find_data(config, model_vocab_size=attempt.model.vocab_size)
    reader = batch_reader(config, data, layout=alone, rank=0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in reader.held_out(config.training.evaluate_sequences):
            labels = torch.from_numpy(batch.labels).flatten()
            logits = model(input_ids=torch.from_numpy(batch.input_ids)).logits.float()
            total += nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum", ignore_index=IGNORED).item()
            count += int((labels != IGNORED).sum())
    return total / count
