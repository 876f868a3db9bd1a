"""A checkpoint of any layout becomes the folder of the model that was trained: same loss, same tensors as any other layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from orchestrator.checkpoints.catalogue import newest
from orchestrator.run_dir import Attempt, checkpoint_dir, read_json
from tests.distributed.attempts import trained
from tests.distributed.ranks import run_ranks

SAVED = ("training.max_steps=3", "checkpoint.save_at_end=true", "model.vocab_size=127")
TP2 = "parallelism.tensor_parallel_size=2"
PP2 = "parallelism.pipeline_parallel_size=2"
GPT2 = ("model.family=gpt2", "model.num_key_value_heads=null", "model.tie_word_embeddings=true")
PHI3_TP4 = ("model.family=phi3", "model.hf_config.pad_token_id=0", "parallelism.tensor_parallel_size=4")
LAYOUTS = {
    "zero 0": (1, ("zero=stage0",)),
    "zero 1, dp 2": (2, ("zero=stage1",)),
    "zero 2, dp 2": (2, ("zero=stage2",)),
    "zero 3, dp 2": (2, ("zero=stage3",)),
    "zero 3 in sub-groups, dp 2": (2, ("zero=stage3", "zero.sub_group_size=3000")),
    "zero 1, tp 2": (2, ("zero=stage1", TP2)),
    "zero 3, tp 2, dp 2": (4, ("zero=stage3", TP2)),
    "zero 1, pp 2": (2, ("zero=stage1", PP2)),
    "zero 1, tp 2, pp 2": (4, ("zero=stage1", TP2, PP2)),
}


def exported(attempt: Attempt, folder: Path, dtype: str = "fp32") -> dict[str, torch.Tensor]:
    checkpoint = newest(checkpoint_dir(attempt.run_dir))
    assert checkpoint is not None
    function = "tests.distributed.exported:export_folder"
    (tensors,) = run_ranks(function, checkpoint.path, folder, dtype, world_size=1, directory=folder.parent / "export-ranks")
    return dict(tensors)


def held_out_loss(attempt: Attempt, folder: Path) -> float:
    function = "tests.distributed.exported:held_out_loss_of_folder"
    directory = folder.parent / "loss-ranks"
    (loss,) = run_ranks(function, attempt.path, folder, world_size=attempt_size(attempt), directory=directory)[:1]
    return float(loss)


def attempt_size(attempt: Attempt) -> int:
    """Reading an attempt takes as many ranks as the attempt has."""
    layout = read_json(attempt.path / "plan.json")["layout"]
    return int(layout["data_parallel_size"] * layout["tensor_parallel_size"] * layout["pipeline_parallel_size"])


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("one")
    return exported(trained(folder / "run", *SAVED, "zero=stage0", world_size=1), folder / "hf")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_exports_the_model_that_was_trained(
    layout: str, one_process: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    world_size, words = LAYOUTS[layout]
    attempt = trained(tmp_path / "run", *SAVED, *words, world_size=world_size)
    tensors = exported(attempt, tmp_path / "hf")
    assert attempt.result is not None
    assert held_out_loss(attempt, tmp_path / "hf") == pytest.approx(attempt.result["held_out_loss"], rel=1e-6)
    assert tensors.keys() == one_process.keys()
    for name, tensor in tensors.items():
        # single elements may differ by more: Adam's first steps divide even the smallest gradients by their own size
        assert (tensor - one_process[name]).norm() < 1e-3 * one_process[name].norm(), name


@pytest.mark.parametrize(
    ("words", "world_size"),
    [((*GPT2, "zero=stage1", TP2, PP2), 4), ((*PHI3_TP4, "zero=stage1"), 4), ((*GPT2, "zero=stage3", TP2), 2)],
    ids=["gpt2, tied, tp 2, pp 2", "phi3, 2 kv heads on tp 4", "gpt2, zero 3, tp 2"],
)
def test_packed_and_tied_weights_are_put_together_again(words: tuple[str, ...], world_size: int, tmp_path: Path) -> None:
    attempt = trained(tmp_path / "run", *SAVED, *words, world_size=world_size)
    exported(attempt, tmp_path / "hf")
    assert attempt.result is not None
    assert held_out_loss(attempt, tmp_path / "hf") == pytest.approx(attempt.result["held_out_loss"], rel=1e-6)


@pytest.mark.parametrize("words", [("zero=stage1",), ("zero=stage2",), ("zero=stage3",), ("zero=stage1", PP2)], ids=str)
def test_the_fp32_weights_of_a_bf16_run_round_to_its_bf16_weights(words: tuple[str, ...], tmp_path: Path) -> None:
    frozen = "training.freeze=[embed_tokens,layers.0.mlp.up_proj]"
    attempt = trained(tmp_path / "run", *SAVED, "precision=bf16", frozen, *words, world_size=2)
    computed = exported(attempt, tmp_path / "bf16", "bf16")
    masters = exported(attempt, tmp_path / "fp32", "fp32")
    assert {tensor.dtype for tensor in computed.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    for name, tensor in masters.items():
        assert torch.equal(tensor.bfloat16(), computed[name]), name
    assert any(not torch.equal(tensor, computed[name].float()) for name, tensor in masters.items())


def test_weights_that_an_nvme_optimizer_keeps_are_exported(tmp_path: Path) -> None:
    # DeepSpeed leaves partitions below a megabyte in memory
    large = ("model.hidden_size=256", "model.intermediate_size=2048", "model.vocab_size=4096")
    nvme = ("offload=optimizer_nvme", f"offload.nvme_path={tmp_path / 'nvme'}", "cluster.nvme_gib=10")
    (tmp_path / "nvme").mkdir()
    words = (*SAVED, "zero=stage3", *nvme, *large, TP2)
    attempt = trained(tmp_path / "run", *words, world_size=4)
    exported(attempt, tmp_path / "hf")
    assert attempt.result is not None
    assert list(checkpoint_dir(attempt.run_dir).rglob("*.swp"))
    assert held_out_loss(attempt, tmp_path / "hf") == pytest.approx(attempt.result["held_out_loss"], rel=1e-6)
