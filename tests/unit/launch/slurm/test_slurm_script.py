from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.config.load import load_config
from orchestrator.launch.slurm.script import JobScript, own_variables, slurm_findings, time_limit_seconds

GPUS = ("launcher=slurm", "model=llama_3_8b", "cluster=dgx_h100", "cluster.hosts=16")
OPTIONS = "launcher.slurm.options"


def script(*overrides: str, run_dir: str = "/shared/run") -> JobScript:
    config = load_config([*GPUS, *overrides])
    arguments = ["data.path=/a b", "model.name='x$y'"]
    return JobScript(
        config=config,
        run_dir=Path(run_dir),
        working_directory=Path("/shared/me"),
        program=["printf", "%s,", "launch"],
        arguments=arguments,
    )


def directives(made: JobScript) -> list[str]:
    return [line.removeprefix("#SBATCH --") for line in made.text().splitlines() if line.startswith("#SBATCH")]


def test_the_job_asks_for_whole_hosts_of_the_cluster() -> None:
    asked = directives(script())
    assert {"nodes=16", "ntasks-per-node=1", "gpus-per-node=8", "exclusive", "mem=0"} <= set(asked)


def test_sbatch_reads_every_option_before_the_first_command() -> None:
    lines = script(f"{OPTIONS}.time=1-00").text().splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


def test_the_script_is_one_that_a_shell_runs(tmp_path: Path) -> None:
    (tmp_path / "job").write_text(script().text())
    ended = subprocess.run(["bash", str(tmp_path / "job")], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "launch,data.path=/a b,model.name='x$y',"


def test_the_users_options_are_there_as_they_were_given() -> None:
    asked = directives(
        script(f"{OPTIONS}.partition=gpu", f"{OPTIONS}.comment='two words # one'", f"{OPTIONS}.contiguous='true'")
    )
    assert {"partition=gpu", "comment='two words # one'", "contiguous"} <= set(asked)


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ("gres=gpu:h100:8", {"gpus-per-node"}),
        ("gpus-per-node=h100:8", {"gpus-per-node=8"}),
        ("cpus-per-task=48", {"exclusive", "mem"}),
        ("mem=400G", {"exclusive", "mem=0"}),
        ("job-name=mine", {"job-name=llama_3_8b"}),
    ],
)
def test_what_the_user_says_of_a_host_replaces_what_we_say(given: str, gone: set[str]) -> None:
    asked = directives(script(f"{OPTIONS}.{given}"))
    assert given in asked
    assert not gone & ({*asked, *(option.partition("=")[0] for option in asked)} - {given, given.partition("=")[0]})


def test_a_cluster_without_gpus_asks_for_none() -> None:
    assert not any("gpus" in option for option in directives(script("cluster=local_cpu", "model=demo")))


@pytest.mark.parametrize(("requeue", "asked"), [("true", "requeue"), ("false", "no-requeue")])
def test_the_job_saves_before_its_limit_and_starts_again_if_wanted(requeue: str, asked: str) -> None:
    made = directives(script(f"launcher.slurm.requeue={requeue}", "launcher.slurm.save_seconds_before_limit=600"))
    assert {"signal=B:USR1@600", asked} <= set(made)


def test_a_percent_sign_in_the_run_directory_is_no_pattern_of_sbatch() -> None:
    assert script(run_dir="/shared/50%j").output == "/shared/50%%j/slurm-%j.out"


@pytest.mark.parametrize(
    ("words", "field", "fix"),
    [
        ([f"{OPTIONS}.nodes=4"], f"{OPTIONS}.nodes", "cluster.hosts"),
        ([f"{OPTIONS}.N=4"], f"{OPTIONS}.N", "cluster.hosts"),
        ([f"{OPTIONS}.signal=B:TERM@60"], f"{OPTIONS}.signal", "save_seconds_before_limit"),
        ([f"{OPTIONS}.array=0-3"], f"{OPTIONS}.array", "launch -m"),
        ([f"{OPTIONS}.p=gpu"], f"{OPTIONS}.p", f"{OPTIONS}.partition=gpu"),
        ([f"{OPTIONS}.Partition=gpu"], f"{OPTIONS}.Partition", "man sbatch"),
        ([f"{OPTIONS}.comment='a\nb'"], f"{OPTIONS}.comment", "one line"),
        (["cluster.hostfile=/my/hosts"], "cluster.hostfile", f"{OPTIONS}.nodelist"),
        (["cluster.exclude=bad1"], "cluster.exclude", f"{OPTIONS}.exclude"),
        (["launcher.slurm.save_seconds_before_limit=0"], "launcher.slurm.save_seconds_before_limit", "seconds"),
        ([f"{OPTIONS}.time=5"], f"{OPTIONS}.time", "more time"),
        ([f"{OPTIONS}.time=43200"], f"{OPTIONS}.time", '"12:00:00"'),
    ],
)
def test_what_no_job_can_have_is_refused_with_the_way_out(words: list[str], field: str, fix: str) -> None:
    (finding,) = slurm_findings(load_config([*GPUS, *words]))
    assert finding.field == field
    assert fix in finding.fix


@pytest.mark.parametrize(
    "words", [(), (f"{OPTIONS}.time=08:00:00",), (f"{OPTIONS}.time=UNLIMITED",), (f"{OPTIONS}.mail-type=END",)]
)
def test_an_ordinary_job_passes(words: tuple[str, ...]) -> None:
    assert not list(slurm_findings(load_config([*GPUS, *words])))


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90", 5400),
        ("2:30", 150),
        ("08:00:00", 28800),
        ("1-0", 86400),
        ("1-2:30", 95400),
        ("1-02:30:05", 95405),
        ("INFINITE", None),
        ("8h", None),
    ],
)
def test_times_are_read_as_sbatch_reads_them(written: str, seconds: int | None) -> None:
    assert time_limit_seconds(written) == seconds


def test_variables_that_would_change_our_options_do_not_reach_sbatch() -> None:
    given = {
        "SBATCH_SIGNAL": "TERM",
        "SBATCH_OPEN_MODE": "truncate",
        "SBATCH_ARRAY_INX": "0-3",
        "SBATCH_PARTITION": "gpu",
        "HOME": "/h",
    }
    assert own_variables(given) == {"SBATCH_PARTITION": "gpu", "HOME": "/h"}
