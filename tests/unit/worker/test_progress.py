"""What ranks show of their progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.data import DataConfig
from orchestrator.config.enums import DataSource
from orchestrator.presence import Phase, Progress, read_progress
from orchestrator.worker.data.chunks import CHUNK_BYTES
from orchestrator.worker.data.corpus import find_corpus
from orchestrator.worker.progress import ProgressSigns


def test_the_first_rank_shows_phase_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    assert read_progress(tmp_path) is None
    signs = ProgressSigns(tmp_path)
    beats = set()
    for phase, step in ((Phase.build, None), (Phase.train, 7), (Phase.evaluate, None), (Phase.evaluate, None)):
        signs.enter(phase, step=step)
        seen = read_progress(tmp_path)
        assert seen is not None
        beats.add(seen.beat)
    assert len(beats) == 4
    assert seen == Progress(beat=seen.beat, step=7, phase=Phase.evaluate)


def test_of_the_other_ranks_only_the_one_that_makes_the_tokens_shows_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    signs = ProgressSigns(tmp_path)
    signs.enter(Phase.build)
    assert read_progress(tmp_path) is None
    signs.data()
    seen = read_progress(tmp_path)
    assert seen is not None
    assert seen.phase is Phase.data


def test_a_long_text_shows_progress_piece_by_piece(tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text("a line of text\n" * (4 * CHUNK_BYTES // 15))
    signs: list[int] = []
    corpus = find_corpus(DataConfig(source=DataSource.text, path=str(text)), advanced=lambda: signs.append(1))
    assert len(list(corpus.chunks())) == len(signs) >= 4
