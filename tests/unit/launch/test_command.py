from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.launch.command import (
    ENVIRONMENT_FILE,
    HOSTFILE,
    LaunchCommand,
    environment_text,
    host_findings,
    hostfile_text,
    launch_command,
)


def command(tmp_path: Path, *overrides: str) -> LaunchCommand:
    config = load_config(list(overrides))
    plan = plan_run(config)
    assert plan.cluster is not None
    return launch_command(config, plan.cluster, tmp_path / "attempt", working_directory=tmp_path)


def test_local_workers_get_the_attempt_directory_and_nothing_else(tmp_path: Path) -> None:
    argv = command(tmp_path).argv
    assert Path(argv[0]).name == "deepspeed"
    assert "--num_gpus=2" in argv
    assert argv[-4:] == ("--no_local_rank", "--module", "orchestrator.worker.start", str(tmp_path / "attempt"))


def test_two_launches_get_different_ports(tmp_path: Path) -> None:
    ports = {argument for _ in range(2) for argument in command(tmp_path).argv if argument.startswith("--master_port")}
    assert len(ports) == 2


def test_devices_the_user_chose_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    argv = command(tmp_path, "model=llama_3_1b", "cluster=dgx_h100", "cluster.devices_per_host=2").argv
    assert "localhost:4,6" in argv
    assert not any(argument.startswith("--num_gpus") for argument in argv)


def two_hosts(tmp_path: Path) -> str:
    hostfile = tmp_path / "mine"
    hostfile.write_text("node-1 slots=8\nnode-2 slots=8\n")
    return f"cluster.hostfile={hostfile}"


GPUS = ("model=llama_3_8b", "cluster=dgx_h100")


def test_several_hosts_go_through_pdsh_with_an_explicit_address(tmp_path: Path) -> None:
    made = command(tmp_path, *GPUS, two_hosts(tmp_path), "launcher.master_addr=10.0.0.1")
    frozen = f"--hostfile={tmp_path / 'attempt' / 'hostfile'}"
    assert {"--launcher=pdsh", "--force_multi", "--master_addr=10.0.0.1", frozen} <= set(made.argv)
    assert made.working_directory == tmp_path / "attempt"


def test_one_host_that_is_another_machine_is_not_started_here(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("gpu-node-07 slots=8\n")
    assert "--launcher=pdsh" in command(tmp_path, *GPUS, f"cluster.hostfile={tmp_path / 'mine'}").argv


def test_deepspeed_sends_the_workers_variables_to_every_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own runner, with a ``pdsh`` that only tells what it was given."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    config = load_config([*GPUS, two_hosts(tmp_path), "launcher.environment={GLOO_SOCKET_IFNAME: eth1}"])
    plan = plan_run(config)
    assert plan.cluster is not None
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    (attempt / HOSTFILE).write_text(hostfile_text(plan.cluster))
    (attempt / ENVIRONMENT_FILE).write_text(environment_text(config, plan.cluster))
    made = launch_command(config, plan.cluster, attempt, working_directory=tmp_path)
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "pdsh").write_text('#!/bin/sh\necho "GIVEN $@"\n')
    (fake / "pdsh").chmod(0o755)
    environment = {**os.environ, **made.environment}
    environment["PATH"] = f"{fake}:{environment['PATH']}"
    words = [made.argv[0], "--no_ssh_check", *made.argv[1:]]
    ended = subprocess.run(words, cwd=attempt, env=environment, capture_output=True, text=True, timeout=120, check=True)
    (given,) = [line for line in ended.stdout.splitlines() if line.startswith("GIVEN")]
    assert "export GLOO_SOCKET_IFNAME=eth1" in given
    assert "export WANDB_MODE=offline" in given
    assert "node-1,node-2" in given
    assert f"cd {attempt}" in given
    assert "hush" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("overrides", "visible", "field"),
    [
        (["cluster.hosts=2"], "", "cluster.hostfile"),
        (["HOSTFILE", "launcher.backend=local"], "", "launcher.backend"),
        ([], "GPU-1234,GPU-5678", "CUDA_VISIBLE_DEVICES"),
        ([], "0,1", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_hosts_that_cannot_be_started_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], visible: str, field: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = [two_hosts(tmp_path) if override == "HOSTFILE" else override for override in overrides]
    config = load_config([*GPUS, *words])
    plan = plan_run(config)
    assert plan.cluster is not None
    assert [finding.field for finding in host_findings(config, plan.cluster)] == [field]


def test_the_shell_line_says_the_same(tmp_path: Path) -> None:
    made = command(tmp_path, "launcher.environment={GLOO_SOCKET_IFNAME: 'lo x'}")
    words = shlex.split(made.shell())
    assert words[:3] == ["cd", str(tmp_path), "&&"]
    assert "GLOO_SOCKET_IFNAME=lo x" in words
    assert tuple(words[-len(made.argv) :]) == made.argv
