"""What is counted before a run: sequences, epochs, padding and answers, and what is said against them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.config.data import DataConfig, MixtureSource
from orchestrator.config.enums import DataSource, Packing
from orchestrator.findings import Severity
from orchestrator.report.data import data_report
from orchestrator.tokens import counts as counts_module
from orchestrator.tokens.counts import DataCount, count_data, count_findings
from orchestrator.tokens.sources import open_sources
from tests.unit.tokens.written import write_folder

LENGTH = 10


def document(size: int) -> list[int]:
    return list(range(size))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    write_folder(folder / "books", [[document(11)] * 40, [document(8)] * 20])
    write_folder(folder / "qa", [[document(6)] * 10], answers=[[4] * 10])
    write_folder(folder / "prompts", [[document(6)] * 10], answers=[[6] * 10])
    return folder


def counted(tokens: Path, *, steps: int = 10, batch: int = 8, weights: dict[str, float] | None = None, **changes) -> DataCount:
    """Of ``books``, or of a mixture with ``weights``."""
    data = data_of(tokens, weights, **changes)
    return count_data(data, *open_sources(data, model_vocab_size=None), steps=steps, train_batch_size=batch)


def data_of(tokens: Path, weights: dict[str, float] | None = None, **changes) -> DataConfig:
    data = DataConfig(source=DataSource.tokens, path=str(tokens / "books"), sequence_length=LENGTH, held_out_fraction=0.1)
    if weights is not None:
        sources = {name: MixtureSource(path=str(tokens / name), weight=weight) for name, weight in weights.items()}
        data = replace(data, source=DataSource.mixture, path=None, sources=sources)
    return replace(data, **changes)


def test_a_stream_has_no_padding_and_epochs_are_counted_on_what_is_not_held_out(tokens):
    count = counted(tokens)
    source = count.sources["tokens"]
    assert (source.tokens, source.documents, source.sequences, source.held_out_sequences) == (600, 60, 59, 6)
    assert (source.padding_share, source.loss_share, source.share) == (0, 1, 1)
    assert source.epochs == pytest.approx(80 / 53)
    assert (count.steps, count.trained_sequences, count.trained_tokens) == (10, 80, 800)


def test_whole_documents_are_counted_with_their_padding(tokens):
    source = counted(tokens, packing=Packing.whole_documents).sources["tokens"]
    # 40 documents that fill a sequence, and 20 with 7 of its 10 places
    assert source.sequences == 60
    assert source.padding_share == pytest.approx(20 * 3 / 600)
    assert not source.is_estimated


def test_more_documents_than_are_packed_are_estimated_from_the_first(tokens, monkeypatch):
    monkeypatch.setattr(counts_module, "MOST_PACKED", 30)
    source = counted(tokens, packing=Packing.whole_documents).sources["tokens"]
    assert source.is_estimated
    assert source.sequences == round(30 * 600 / 330)


def test_epochs_of_a_mixture_are_those_of_each_source(tokens):
    count = counted(tokens, weights={"books": 3, "qa": 1}, held_out_fraction=0)
    assert {name: source.share for name, source in count.sources.items()} == {"books": 0.75, "qa": 0.25}
    assert count.sources["books"].epochs == pytest.approx(60 / 59)
    assert count.sources["qa"].epochs == pytest.approx(20 / 5)
    assert count.sources["qa"].loss_share == pytest.approx(2 / 6)


def test_held_out_sets_are_counted_whole(tokens):
    count = counted(tokens, evaluation={"qa": str(tokens / "qa")})
    assert count.evaluation["qa"].held_out_sequences == count.evaluation["qa"].sequences == 5


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"steps": 40}, [("data-epochs", Severity.info, "tokens is read 6.0 times")]),
        ({"sequence_length": 700}, [("data-size", Severity.error, "tokens: 600 tokens make 0 sequences of 700")]),
        (
            {"sequence_length": 11, "packing": Packing.whole_documents, "weights": {"prompts": 1}, "steps": 1, "batch": 1},
            [("data-answers", Severity.error, "no token of prompts counts")],
        ),
        (
            {"evaluation": {"qa": "{tokens}/qa"}, "sequence_length": 100, "steps": 1},
            [("data-size", Severity.error, "evaluation.qa: 60 tokens make 0 sequences of 100")],
        ),
    ],
    ids=str,
)
def test_numbers_that_speak_against_the_run_are_findings(tokens, options, expected):
    if "evaluation" in options:
        options = options | {"evaluation": {name: path.format(tokens=tokens) for name, path in options["evaluation"].items()}}
    count = counted(tokens, **options)
    changes = {name: value for name, value in options.items() if name not in ("steps", "batch", "weights")}
    found = count_findings(count, data_of(tokens, options.get("weights"), **changes))
    assert [(finding.rule, finding.severity) for finding in found] == [entry[:2] for entry in expected]
    for finding, (_rule, _severity, said) in zip(found, expected, strict=True):
        assert finding.message.startswith(said)
        assert "0 sequences of" not in finding.message or "held out" not in finding.message


def test_sequences_that_are_mostly_padding_are_warned_of(tmp_path):
    write_folder(tmp_path / "long", [[document(60)] * 10])
    data = DataConfig(
        source=DataSource.tokens,
        path=str(tmp_path / "long"),
        sequence_length=50,
        packing=Packing.whole_documents,
        held_out_fraction=0,
    )

    def found(length: int) -> list[tuple[str, Severity]]:
        changed = replace(data, sequence_length=length)
        count = count_data(changed, *open_sources(changed, model_vocab_size=None), steps=1, train_batch_size=1)
        return [(finding.rule, finding.severity) for finding in count_findings(count, changed)]

    assert found(60) == []
    # one document in each sequence, and none in the other half
    assert found(118) == [("data-padding", Severity.warning)]


def test_the_report_names_every_source_and_its_epochs(tokens):
    count = counted(tokens, weights={"books": 3, "qa": 1}, evaluation={"more": str(tokens / "qa")}, held_out_fraction=0)
    console = Console(width=160, file=io.StringIO(), record=True)
    for part in data_report(count.to_dict()):
        console.print(part)
    report = console.export_text()
    for said in ("books", "75.0%", "evaluation.more", "33.3% of the tokens", "10 steps read 80 sequences, 800 tokens"):
        assert said in report
    assert "1.0 epochs of books, 4.0 epochs of qa" in report
