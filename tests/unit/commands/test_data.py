"""Data in the commands: counted with the plan where they can be read, and compared when a run is resumed."""

from __future__ import annotations

import io
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.commands import prepare
from orchestrator.commands.paths import with_absolute_paths
from orchestrator.commands.planned import plan_run
from orchestrator.commands.resumed_data import changed_data
from orchestrator.config.data import DataConfig, MixtureSource, PrepareConfig
from orchestrator.config.enums import DataSource, Packing, View
from orchestrator.config.load import load_config
from orchestrator.config.schema import RunConfig
from orchestrator.findings import Severity
from orchestrator.report.prepare import PrepareView
from orchestrator.run_dir import write_json
from orchestrator.tokens.manifest import read_manifest, write_manifest
from tests.unit.tokens.written import write_folder, write_megatron


@pytest.fixture
def tokens(tmp_path) -> Path:
    for name, first in (("books", 0), ("code", 1)):
        write_folder(tmp_path / name, [[list(range(first, 90)) for _ in range(20)]], vocab_size=100)
    return tmp_path


@pytest.fixture(scope="module")
def demo() -> RunConfig:
    return load_config(["run_dir=run", "data.sequence_length=32", "training.max_steps=9", "data.source=tokens"])


@pytest.fixture
def mixture(demo, tokens) -> RunConfig:
    sources = {name: MixtureSource(path=str(tokens / name), weight=weight) for name, weight in (("books", 0.7), ("code", 0.3))}
    return replace(demo, data=DataConfig(source=DataSource.mixture, sources=sources, sequence_length=32))


def with_path(demo: RunConfig, path: Path, **changes) -> RunConfig:
    return replace(demo, data=replace(demo.data, path=str(path), **changes))


def test_a_plan_counts_the_data(demo, tokens):
    plan = plan_run(with_path(demo, tokens / "books"))
    assert plan.fits, plan.findings
    data = plan.to_dict()["data"]
    assert data["sources"]["tokens"]["tokens"] == 1800
    assert data["trained_sequences"] == 9 * plan.layout.train_batch_size
    assert data["sources"]["tokens"]["epochs"] == pytest.approx(data["trained_sequences"] / 55)


@pytest.mark.parametrize(
    ("path", "changes", "severity", "rule"),
    [
        ("not/here", {}, Severity.info, "data-count"),
        ("broken", {}, Severity.error, "token-files"),
        ("books", {"sequence_length": 1000, "held_out_fraction": 0.6}, Severity.error, "data-size"),
        ("books", {"evaluation": {"qa": "/not/here"}}, Severity.info, "data-count"),
    ],
)
def test_what_cannot_be_counted_is_said(demo, tokens, path, changes, severity, rule):
    (tokens / "broken").mkdir()
    plan = plan_run(with_path(demo, tokens / path, **changes))
    about_data = [finding for finding in plan.findings if finding.field.startswith("data.")]
    assert [(finding.rule, finding.severity) for finding in about_data] == [(rule, severity)]
    assert plan.data is None or rule == "data-size"
    assert plan.fits == (severity is Severity.info)


def test_tokens_of_a_larger_vocabulary_are_refused_before_the_start(demo, tokens):
    config = with_path(demo, tokens / "books")
    plan = plan_run(replace(config, model=replace(config.model, vocab_size=99)))
    (finding,) = [finding for finding in plan.findings if finding.rule == "tokenizer-vocabulary"]
    assert finding.severity is Severity.error
    assert "100" in finding.message and "99" in finding.message


def test_a_check_of_much_says_how_far_it_has_come(demo, tokens, monkeypatch):
    monkeypatch.setattr(prepare, "SILENT_SECONDS", 0.0)
    write_folder(tokens / "two", [[[1, 2, 3]], [[4, 5, 6]]])
    console = Console(file=io.StringIO(), width=200)
    config = replace(demo, prepare=PrepareConfig(output=str(tokens / "two")))
    result = prepare.check(config, PrepareView(console, View.lines))
    assert (result.exit_code, result.payload["status"]) == (0, "verified")
    assert "checking: 50.0% of 12 B" in console.file.getvalue()


@pytest.mark.parametrize(("id", "says"), [(-1, "down to -1"), (70_000, "up to 70000")])
def test_ids_without_a_row_in_the_embedding_are_seen_in_megatron_files(demo, tmp_path, id, says):
    write_megatron(tmp_path / "theirs", [[5, 6, id, 7]] * 30, code=4, dtype="<i4")
    (finding,) = [found for found in plan_run(with_path(demo, tmp_path / "theirs")).findings if found.field == "data.path"]
    assert (finding.rule, finding.severity) == ("tokenizer-vocabulary", Severity.error)
    assert says in finding.message


def test_sources_of_different_tokenizers_are_warned_of(mixture, tokens):
    for name, checksum in (("books", "a"), ("code", "b")):
        manifest = read_manifest(tokens / name, field="data")
        write_manifest(tokens / name, replace(manifest, tokenizer_sha256=checksum))
    (finding,) = [finding for finding in plan_run(mixture).findings if finding.rule == "tokenizers-differ"]
    assert finding.severity is Severity.warning
    assert str(tokens / "code") in finding.message
    assert str(tokens / "books" / "tokenizer.json") in finding.fix


def test_bad_options_are_refused_without_looking_at_the_data(mixture):
    mixture.data.sources["books"].weight = -1
    findings = plan_run(mixture).findings
    assert [finding.rule for finding in findings if finding.field.startswith("data.")] == ["mixture-sources"]


def test_workers_get_absolute_paths_of_sources_and_held_out_sets(mixture, tokens, monkeypatch):
    monkeypatch.chdir(tokens)
    mixture.data.sources["books"].path = "books"
    mixture.data.evaluation["qa"] = "code"
    data = with_absolute_paths(mixture).data
    assert data.sources["books"].path == str(tokens / "books")
    assert data.evaluation == {"qa": str(tokens / "code")}
    assert mixture.data.sources["books"].path == "books"


def resumed(tmp_path: Path, before: RunConfig, after: RunConfig) -> list[str]:
    write_json(tmp_path / "run" / "request" / "config.json", asdict(before))
    return [finding.field for finding in changed_data(after, tmp_path / "run")]


def changed(config: RunConfig, **changes) -> RunConfig:
    return replace(config, data=replace(config.data, **changes))


def test_a_resume_refuses_every_change_of_the_order(tokens, mixture):
    before = mixture
    assert resumed(tokens, before, before) == []
    weights = {"books": MixtureSource(path=str(tokens / "books"), weight=0.5), "code": before.data.sources["code"]}
    assert resumed(tokens, before, changed(before, sources=weights)) == ["data.sources.books.weight"]
    fewer = {"books": before.data.sources["books"]}
    assert resumed(tokens, before, changed(before, sources=fewer)) == ["data.sources.code.path", "data.sources.code.weight"]
    assert resumed(tokens, before, changed(before, packing=Packing.whole_documents)) == ["data.packing"]
    assert resumed(tokens, before, changed(before, reset_at_documents=True)) == ["data.reset_at_documents"]
    assert resumed(tokens, before, replace(before, seed=9)) == ["seed"]


def test_a_resume_takes_tokens_that_have_moved_and_other_held_out_sets(tokens, mixture):
    before = mixture
    (tokens / "books").rename(tokens / "moved")
    (tokens / "copy").symlink_to(tokens / "code")
    moved = {
        "books": MixtureSource(path=str(tokens / "moved"), weight=0.7),
        "code": MixtureSource(path=str(tokens / "copy"), weight=0.3),
    }
    assert resumed(tokens, before, changed(before, sources=moved, evaluation={"qa": str(tokens / "code")})) == []
    other = {"books": moved["books"], "code": MixtureSource(path=str(tokens / "moved"), weight=0.3)}
    assert resumed(tokens, before, changed(before, sources=other)) == ["data.sources.code.path"]
