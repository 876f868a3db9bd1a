from __future__ import annotations

import pytest

from orchestrator import cli


@pytest.mark.parametrize(
    ("words", "flags", "overrides"),
    [
        (["zero=stage3", "--info", "defaults-tree"], ["--info", "defaults-tree"], ["zero=stage3"]),
        (["--info", "zero=stage3"], ["--info", "all"], ["zero=stage3"]),
        (["--info"], ["--info", "all"], []),
        (["--cfg=job", "-p", "zero", "--resolve", "seed=1"], ["--cfg", "job", "-p", "zero", "--resolve"], ["seed=1"]),
    ],
)
def test_flags_take_their_values_wherever_they_stand(words: list[str], flags: list[str], overrides: list[str]) -> None:
    arguments, findings = cli.parse(["launch", *words])
    assert arguments is not None and not findings
    assert arguments.hydra_flags == flags
    assert arguments.overrides == overrides


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--info", "tree"], "--info"),
        (["--cfg"], "--cfg"),
        (["--cfg", "zero=stage3"], "--cfg"),
        (["--cfg", "job", "--package"], "--package"),
        (["--cfg", "job", "zero.stge=3"], "zero.stge"),
        (["--cfg", "job", "foo"], "foo"),
    ],
)
def test_a_flag_or_word_that_hydra_would_choke_on_is_refused(
    words: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["launch", *words]) == 2
    assert f"error: {field}: " in capsys.readouterr().err
