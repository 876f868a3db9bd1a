"""Every family in every kind of layout computes what Hugging Face's own model computes in one process."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from orchestrator.checkpoints.catalogue import newest
from orchestrator.run_dir import checkpoint_dir
from tests.distributed.attempts import new_attempt
from tests.distributed.family_ranks import STEPS, combine
from tests.distributed.ranks import run_ranks

RANKS = "tests.distributed.family_ranks"
OPTIONS = (
    f"training.max_steps={STEPS}",
    "training.train_batch_size=4",
    "training.gradient_clipping=0.1",
    "lr_scheduler=constant",
    "lr_scheduler.warmup_steps=0",
    "optimizer.weight_decay=0.5",
    "model.vocab_size=130",
    "model.num_attention_heads=8",
    "model.head_dim=null",
    "checkpoint.keep=0",
)
NO_GROUPS = ("model.num_key_value_heads=null",)
FAMILIES = {
    "gpt2": (*NO_GROUPS, "model.tie_word_embeddings=true"),
    "llama": (),
    "mistral": ("model.hf_config={sliding_window:8}",),
    "qwen2": (),
    "qwen3": (),
    "gpt_neox": NO_GROUPS,
    "gemma2": ("model.attention_implementation=eager", "model.head_dim=8", "model.tie_word_embeddings=true"),
    "phi3": ("model.hf_config={pad_token_id:0}",),
}
NAMED_REASONS = {
    ("gpt2", "tp4 kv2"): "as many key and value heads as query heads",
    ("gpt_neox", "tp4 kv2"): "as many key and value heads as query heads",
}
"""Cells of the table that do not exist, and why."""
TOLERANCES = {"logits": 1e-5, "gradients": 1e-4, "losses": 1e-4}


@dataclass(frozen=True)
class Layout:
    """A column of the table: processes, options, and whether it starts from a folder or ends in one."""

    world_size: int
    options: tuple[str, ...]
    imports: bool = False
    exports: bool = False


def _sizes(tensor: int, pipeline: int = 1) -> tuple[str, ...]:
    return (f"parallelism.tensor_parallel_size={tensor}", f"parallelism.pipeline_parallel_size={pipeline}")


LAYOUTS = {
    "tp2": Layout(2, (*_sizes(2), "zero=stage1")),
    "tp2 sp": Layout(2, (*_sizes(2), "parallelism.sequence_parallel=true", "zero=stage0")),
    "tp4 kv2": Layout(4, (*_sizes(4), "zero=stage1")),
    "pp2": Layout(2, (*_sizes(1, 2), "zero=stage0")),
    "tp2 pp2": Layout(4, (*_sizes(2, 2), "zero=stage1"), exports=True),
    "zero3 tp2": Layout(4, (*_sizes(2), "zero=stage3", "zero.stage3_param_persistence_threshold=0"), exports=True),
    "import": Layout(2, (*_sizes(2), "zero=stage1", "seed=99"), imports=True),
}


@pytest.fixture(scope="module")
def table(report):
    """Largest difference over largest value of every cell, printed when all are there."""
    rows: dict[tuple[str, str], str] = {}
    yield rows
    columns = [*LAYOUTS, "export"]
    lines = ["", "against Hugging Face's model in one process: logits / gradients / losses of five steps; export: logits"]
    lines.append(f"{'':9}" + "".join(f"{column:>26}" for column in columns))
    for family in FAMILIES:
        cells = [NAMED_REASONS.get((family, column)) or rows.get((family, column), "") for column in columns]
        lines.append(f"{family:9}" + "".join(f"{cell[:24]:>26}" for cell in cells))
    lines += [f"{family}, {column}: {reason}" for (family, column), reason in NAMED_REASONS.items()]
    report("\n".join(lines))


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request, tmp_path_factory):
    """A family's options, what the plain model does with them, and a folder with its first weights."""
    options = (*OPTIONS, f"model.family={request.param}", *FAMILIES[request.param])
    run_dir = tmp_path_factory.mktemp(request.param) / "run"
    attempt = new_attempt(run_dir, (*options, "training.train_micro_batch_size_per_gpu=4"), world_size=1)
    (measured,) = run_ranks(f"{RANKS}:measure_plainly", attempt.path, world_size=1, directory=attempt.path / "ranks")
    return request.param, options, measured, attempt


@pytest.mark.parametrize("column", LAYOUTS)
def test_a_family_computes_the_same_in_every_layout(tmp_path, reference, table, column):
    family, options, expected, plain_attempt = reference
    if (family, column) in NAMED_REASONS:
        return
    layout = LAYOUTS[column]
    tensor, pipeline = (int(option.rpartition("=")[2]) for option in layout.options[:2])
    replicas = layout.world_size // (tensor * pipeline)
    own = (f"training.train_micro_batch_size_per_gpu={4 // replicas}", f"parallelism.data_parallel_size={replicas}")
    if layout.imports:
        folder = tmp_path / "folder"
        arguments = (plain_attempt.path, folder)
        run_ranks(f"{RANKS}:save_plain_model", *arguments, world_size=1, directory=tmp_path / "saving")
        own = (*own, f"model.pretrained={folder}")
    attempt = new_attempt(tmp_path / "run", (*options, *layout.options, *own), world_size=layout.world_size)
    arguments = (attempt.path, layout.exports)
    ranks = run_ranks(f"{RANKS}:measure", *arguments, world_size=layout.world_size, directory=attempt.path / "ranks")
    shown = [measured for measured, _ in ranks if measured.logits is not None]
    differences = {"logits": max(difference(measured.logits, expected.logits) for measured in shown)}
    if not layout.imports:
        gradients = combine([shard for _, shards in ranks for shard in shards], tensor_parallel_size=tensor)
        assert gradients.keys() == expected.gradients.keys()
        differences["gradients"] = max(difference(gradients[name], expected.gradients[name]) for name in gradients)
        curves = [torch.tensor(measured.losses) for measured, _ in ranks]
        differences["losses"] = max(difference(curve, torch.tensor(expected.losses)) for curve in curves)
    table[family, column] = " / ".join(f"{value:.0e}" for value in differences.values())
    for name, value in differences.items():
        assert value < TOLERANCES[name], differences
    if layout.exports:
        exported = difference(_export(attempt, tmp_path), shown[0].trained_logits)
        table[family, "export"] = " / ".join(filter(None, [table.get((family, "export")), f"{exported:.0e}"]))
        assert exported < TOLERANCES["logits"]


def _export(attempt, tmp_path) -> torch.Tensor:
    """The logits of the folder that the attempt's checkpoint becomes."""
    checkpoint = newest(checkpoint_dir(attempt.path.parents[1]))
    assert checkpoint is not None
    request = (checkpoint.path, tmp_path / "exported", "fp32")
    run_ranks("tests.distributed.exported:export_folder", *request, world_size=1, directory=tmp_path / "export")
    function = f"{RANKS}:logits_of_folder"
    (logits,) = run_ranks(function, tmp_path / "exported", world_size=1, directory=tmp_path / "loading")
    return logits


def difference(values: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over largest value."""
    return ((values - expected).abs().max() / expected.abs().max()).item()
