"""``estimate=exact``: what is counted beside what is predicted, and what cannot be counted here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator

SMALL = (
    "data=synthetic",
    "model.vocab_size=512",
    "model.hidden_size=128",
    "model.num_hidden_layers=2",
    "data.sequence_length=64",
)


def test_both_estimates_of_every_stage_side_by_side(tmp_path: Path) -> None:
    words = ("zero=stage1", "parallelism.pipeline_parallel_size=2", "estimate=exact", "output=json")
    ended = orchestrator("validate", *SMALL, *words, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    entries = ended.json["memory"]["exact"]
    assert sorted((entry["stage"], entry["rank"]) for entry in entries) == [(0, 0), (1, 1)]
    for entry in entries:
        for component in ("parameters", "gradients", "optimizer_states", "activations"):
            sizes = entry["components"][component]
            assert sizes["closed_form_bytes"] == pytest.approx(sizes["exact_bytes"], rel=0.02), component
    assert "exact estimate: rank" in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "says", "fix"),
    [
        (("model=llama_2_70b", "cluster=dgx_h100", "cluster.hosts=8"), "of RAM for the fullest rank", "estimate=closed_form"),
        (
            ("cluster=dgx_h100", "model.attention_implementation=flash_attention_2"),
            "no flash_attention_2",
            "model.attention_implementation=sdpa",
        ),
        (("cluster=dgx_h100", "optimizer=lion"), "CUDA kernel only", "offload.optimizer_device=cpu"),
    ],
)
def test_what_cannot_be_counted_here_is_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], says: str, fix: str
) -> None:
    ended = orchestrator("validate", "estimate=exact", "training=default", *words, "output=json", cwd=tmp_path)
    assert ended.code == 2, ended.everything
    (finding,) = [finding for finding in ended.json["findings"] if finding["rule"] == "exact-estimate"]
    assert finding["field"] == "estimate"
    assert says in finding["message"]
    assert fix in finding["fix"]
    assert "exact" not in ended.json["memory"]
