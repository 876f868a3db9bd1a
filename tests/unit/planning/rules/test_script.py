"""A training script of the user's own: what is said about it, and that our own data is not."""

from __future__ import annotations

from orchestrator.config.enums import DataSource
from tests.unit.planning.configurations import plan_of, run_config
from tests.unit.planning.rules.broken import INFO, TP, WARNING, Broken, check, each

SCRIPT = {"training__script": "/train.py"}

CASES = [
    Broken(
        "script-parallelism",
        WARNING,
        TP,
        {"parallelism__tensor_parallel_size": 2, **SCRIPT},
        ("2 is true only if",),
        ("parallelism.tensor_parallel_size=1",),
    ),
    Broken(
        "script-placeholder",
        WARNING,
        "training.script_arguments",
        {"training__script_arguments": ["--deepspeed", "{ds_confg}"], **SCRIPT},
        ("{ds_confg}",),
    ),
    Broken(
        "script-arguments",
        WARNING,
        "training.script_arguments",
        {"training__script_arguments": ["--epochs", "3"]},
        ("2 argument(s)",),
    ),
    Broken("script-decides", INFO, "training.script", SCRIPT, ("model.name=small", "data.sequence_length=1024")),
    Broken("script-decides", INFO, "lr_scheduler.type", SCRIPT, ("cosine",)),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)


def test_the_name_that_was_meant_is_shown():
    config = run_config(training__script_arguments=["{ds_confg}"], **SCRIPT)
    (finding,) = [finding for finding in plan_of(config).findings if finding.rule == "script-placeholder"]
    assert "{ds_config}" in finding.fix


def test_data_that_the_script_never_reads_is_not_judged():
    config = run_config(data__source=DataSource.text, data__tokenizer_vocab_size=50_000)
    assert plan_of(config).verdict == "invalid"
    config.training.script = "/train.py"
    assert plan_of(config).verdict == "feasible"
