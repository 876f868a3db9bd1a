"""Data, frozen parameters and the learning rate: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from typing import Any

from orchestrator.config.data import MixtureSource
from orchestrator.config.enums import DataSource, LrSchedule, Packing
from tests.unit.planning.configurations import plan_of, run_config
from tests.unit.planning.rules.broken import ERROR, INFO, WARNING, Broken, check, each


def mixture(**sources: MixtureSource) -> dict[str, Any]:
    return {"data__source": DataSource.mixture, "data__sources": sources}


CASES = [
    Broken("freeze-pattern", ERROR, "training.freeze", {"training__freeze": ["norm", "layers.("]}, ("'layers.('",)),
    Broken(
        "freeze-match",
        ERROR,
        "training.freeze",
        {"training__freeze": [r"model\.embed_token\.weight"]},
        ("finds none of the 147 parameters of small",),
    ),
    Broken(
        "freeze-all",
        ERROR,
        "training.freeze",
        {"training__freeze": ["model", "lm_head"]},
        ("nothing",),
        ("training.freeze=[]",),
    ),
    Broken(
        "sequence-length",
        ERROR,
        "data.sequence_length",
        {"data__sequence_length": 4096},
        ("4096", "2048"),
        ("data.sequence_length=2048",),
    ),
    Broken(
        "tokenizer-vocabulary",
        ERROR,
        "data.tokenizer_vocab_size",
        {"data__source": DataSource.python_stdlib, "data__tokenizer_vocab_size": 50000},
        ("50000", "32000"),
        ("data.tokenizer_vocab_size=32000",),
    ),
    Broken(
        "synthetic-tokens",
        ERROR,
        "data.synthetic_tokens",
        {"data__synthetic_tokens": 10, "data__sequence_length": 32},
        ("10", "32"),
        ("data.synthetic_tokens=65",),
    ),
    Broken("data-path", ERROR, "data.path", {"data__source": DataSource.text}, ("text",), ("data.path=/your/text",)),
    Broken("data-path", INFO, "data.path", {"data__path": "/text"}, ("synthetic",), ("data.path=null",)),
    Broken("data-path", ERROR, "data.path", {"data__source": DataSource.tokens}, ("tokens",), ("data.path=/your/tokens",)),
    Broken("mixture-sources", ERROR, "data.sources", {"data__source": DataSource.mixture}, ("no source",)),
    Broken(
        "mixture-sources",
        WARNING,
        "data.sources",
        {"data__sources": {"books": MixtureSource(path="/books")}},
        ("books", "data.source=synthetic"),
        ("data.source=mixture",),
    ),
    Broken(
        "mixture-sources",
        ERROR,
        "data.sources.books.path",
        mixture(books=MixtureSource()),
        ("no tokens",),
        ("data.sources.books.path=/your/tokens",),
    ),
    Broken("mixture-sources", ERROR, "data.sources.a.weight", mixture(a=MixtureSource(path="/a", weight=-0.5)), ("-0.5",)),
    Broken("mixture-sources", ERROR, "data.sources.a.weight", mixture(a=MixtureSource(path="/a", weight=0)), ("0",)),
    Broken("data-names", ERROR, "data.sources", mixture(**{"a/b": MixtureSource(path="/a")}), ("'a/b'",)),
    Broken("data-names", ERROR, "data.evaluation", {"data__evaluation": {"a b": "/a"}}, ("'a b'",)),
    Broken("synthetic-documents", INFO, "data.packing", {"data__packing": Packing.whole_documents}, ("one document",)),
    Broken("synthetic-documents", INFO, "data.reset_at_documents", {"data__reset_at_documents": True}, ("one document",)),
    Broken(
        "ignored-labels",
        INFO,
        "data.ignore_fraction",
        {"data__source": DataSource.python_stdlib, "data__ignore_fraction": 0.5},
        ("0.5",),
        ("data.ignore_fraction=0",),
    ),
    Broken(
        "document-masks",
        INFO,
        "model.attention_implementation",
        {"data__reset_at_documents": True, "data__sequence_length": 2048},
        ("sdpa", "16.00 MiB"),
        ("model.attention_implementation=flash_attention_2",),
    ),
    Broken(
        "warmup-steps",
        WARNING,
        "lr_scheduler.warmup_steps",
        {"lr_scheduler__warmup_steps": 100},
        ("100", "training.max_steps=100"),
        ("lr_scheduler.warmup_steps=10",),
    ),
    Broken(
        "decay-steps",
        ERROR,
        "lr_scheduler.decay_steps",
        {"lr_scheduler__type": LrSchedule.wsd, "lr_scheduler__warmup_steps": 60, "lr_scheduler__decay_steps": 50},
        ("60", "50", "100"),
        ("lr_scheduler.decay_steps=40",),
    ),
    Broken(
        "decay-steps",
        INFO,
        "lr_scheduler.decay_steps",
        {"lr_scheduler__decay_steps": 50},
        ("cosine",),
        ("lr_scheduler.decay_steps=null",),
    ),
    Broken("minimum-rate", ERROR, "lr_scheduler.min_lr", {"lr_scheduler__min_lr": 1.0}, ("1.0", "0.0003")),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


def test_prepared_tokens_need_no_room_for_a_tokenizer_that_is_not_trained():
    plan = plan_of(run_config(data__source=DataSource.tokens, data__path="/tokens", data__tokenizer_vocab_size=50000))
    assert not [finding for finding in plan.findings if finding.field.startswith("data.")]


def test_the_name_that_was_meant_is_shown():
    (finding,) = plan_of(run_config(training__freeze=[r"model\.embed_token\.weight"])).findings
    assert "model.embed_tokens.weight" in finding.fix
