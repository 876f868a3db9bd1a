"""``orchestrator explain`` on the real command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import orchestrator

LOG = Path(__file__).parents[1] / "data" / "logs" / "device_out_of_memory_two_hosts.log"


def test_a_log_is_explained_in_words_and_as_json(tmp_path: Path) -> None:
    ended = orchestrator("explain", str(LOG), cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert "first to fail: rank 3 on node-b, line 10" in ended.stdout
    assert "a device ran out of memory" in ended.stdout
    assert "rank 0 on node-a: another rank, or the network to it, has gone" in ended.stdout
    as_json = orchestrator("explain", str(LOG), "output=json", cwd=tmp_path, watched=True)
    assert as_json.json["cause"] == "device-out-of-memory"
    assert "STARTED A PROCESS" not in as_json.stderr
    assert not list(tmp_path.iterdir())


def test_of_a_run_directory_the_newest_attempt_is_explained(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "lr=0.1" / "attempts" / str(number)).mkdir(parents=True)
    shutil.copy(LOG, tmp_path / "lr=0.1" / "attempts" / "1" / "launcher.log")
    ended = orchestrator("explain", "lr=0.1", "output=json", cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert ended.json["log"] == "lr=0.1/attempts/1/launcher.log"


@pytest.mark.parametrize(
    ("words", "told"),
    [((), "no log is named"), (("a.log",), "No such file"), (("a", "b"), "2 logs"), ((".",), "no log of a run")],
)
def test_what_is_no_log_is_refused(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    ended = orchestrator("explain", *words, "output=json", cwd=tmp_path)
    assert ended.code == 2
    (finding,) = ended.json["findings"]
    assert finding["rule"] == "log"
    assert told in finding["message"]
