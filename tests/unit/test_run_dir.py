from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.load import load_config, run_config_from_dict
from orchestrator.errors import ConfigurationError
from orchestrator.run_dir import (
    CommandWords,
    RunContents,
    exclusive,
    newest_attempt,
    recorded_words,
    resume_run,
    start_run,
    writable,
    write_json,
)


@pytest.fixture
def contents() -> RunContents:
    return RunContents(
        config=load_config(["experiment=smoke"]),
        plan={"verdict": "feasible"},
        ds_config={"train_batch_size": 8},
        model={"name": "smoke"},
        words=CommandWords(overrides=("experiment=smoke",)),
    )


def test_an_attempt_holds_what_the_workers_need(tmp_path: Path, contents: RunContents) -> None:
    attempt = start_run(tmp_path / "run", contents)
    config = run_config_from_dict(json.loads((attempt.path / "config.json").read_text()))
    assert config == contents.config
    described = json.loads((attempt.path / "attempt.json").read_text())
    assert described["attempt"] == 1
    assert described["resume_tag"] is None
    assert Path(described["checkpoint_dir"]).is_dir()


def test_a_resumed_run_keeps_its_request_and_its_tracking_id(tmp_path: Path, contents: RunContents) -> None:
    first = start_run(tmp_path / "run", contents)
    request = (tmp_path / "run" / "request" / "ds_config.json").read_bytes()
    changed = replace(contents, ds_config={"train_batch_size": 16})
    second = resume_run(tmp_path / "run", changed, resume_tag="global_step5")
    assert second.number == 2
    assert (tmp_path / "run" / "request" / "ds_config.json").read_bytes() == request
    ids = [json.loads((attempt.path / "attempt.json").read_text())["wandb_id"] for attempt in (first, second)]
    assert ids[0] == ids[1]


def test_a_second_resume_starts_from_the_words_of_the_first(tmp_path: Path, contents: RunContents) -> None:
    start_run(tmp_path / "run", contents)
    longer = CommandWords(overrides=("experiment=smoke", "training.max_steps=9"), config_dir="/mine")
    resume_run(tmp_path / "run", replace(contents, words=longer), resume_tag="global_step5")
    assert recorded_words(tmp_path / "run") == longer


def test_an_attempt_that_was_cut_off_while_it_was_written_is_none(tmp_path: Path, contents: RunContents) -> None:
    """A resume after that still knows what the run was started with."""
    first = start_run(tmp_path / "run", contents)
    (tmp_path / "run" / "attempts" / "2").mkdir()
    assert newest_attempt(tmp_path / "run") == first
    assert recorded_words(tmp_path / "run") == contents.words
    assert resume_run(tmp_path / "run", contents, resume_tag=None).number == 3


def test_files_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    write_json(tmp_path / "value.json", {})
    (tmp_path / "plain").touch()
    assert (tmp_path / "value.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_quota_is_told_with_its_place(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.raises(ConfigurationError, match="Disk quota exceeded"), writable(tmp_path):
        full()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(ConfigurationError, match=r"\.lock cannot be written"), exclusive(tmp_path):
        pass


def test_a_directory_with_a_run_is_not_overwritten(tmp_path: Path, contents: RunContents) -> None:
    attempt = start_run(tmp_path / "run", contents)
    assert start_run(tmp_path / "run", contents).number == 2, "nothing has been started: a dry run"
    attempt.log_file.touch()
    with pytest.raises(ConfigurationError, match="already holds a run"):
        start_run(tmp_path / "run", contents)


def test_nothing_to_resume_is_an_error(tmp_path: Path, contents: RunContents) -> None:
    with pytest.raises(ConfigurationError, match="no run to go on with"):
        resume_run(tmp_path, contents, resume_tag="global_step5")


def test_two_launches_of_one_run_do_not_meet(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(ConfigurationError, match="another launch"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
