from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.launch.command import HOSTFILE, host_findings, launch_spec
from orchestrator.launch.pdsh import WORKER_ENVIRONMENT, without, worker_environment_text, write_private
from orchestrator.launch.spec import LaunchSpec


def spec_of(tmp_path: Path, *overrides: str) -> LaunchSpec:
    config = load_config(list(overrides))
    plan = plan_run(config)
    assert plan.cluster is not None
    spec = launch_spec(config, plan.cluster, tmp_path / "attempt", working_directory=tmp_path)
    assert LaunchSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    return spec


def argv_of(tmp_path: Path, *overrides: str) -> tuple[str, ...]:
    spec = spec_of(tmp_path, *overrides)
    return spec.argv(0, spec.master_port or 29500)


def test_local_workers_get_the_attempt_directory_and_nothing_else(tmp_path: Path) -> None:
    argv = argv_of(tmp_path)
    assert Path(argv[0]).name == "deepspeed"
    assert "--num_gpus=2" in argv
    assert argv[-4:] == ("--no_local_rank", "--module", "orchestrator.worker.start", str(tmp_path / "attempt"))


def test_two_launches_get_different_ports(tmp_path: Path) -> None:
    ports = {argument for _ in range(2) for argument in argv_of(tmp_path) if argument.startswith("--master_port")}
    assert len(ports) == 2


def test_devices_the_user_chose_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    argv = argv_of(tmp_path, "model=llama_3_1b", "cluster=dgx_h100", "cluster.devices_per_host=2")
    assert "localhost:4,6" in argv
    assert not any(argument.startswith("--num_gpus") for argument in argv)


def two_hosts(tmp_path: Path) -> str:
    hostfile = tmp_path / "mine"
    hostfile.write_text("node-1 slots=8\nnode-2 slots=8\n")
    return f"cluster.hostfile={hostfile}"


GPUS = ("model=llama_3_8b", "cluster=dgx_h100")


def test_several_hosts_each_get_a_launcher_with_their_node_rank(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *GPUS, two_hosts(tmp_path), "launcher.master_addr=10.0.0.1", "cluster.exclude=node-1:0")
    assert spec.agent_hosts == ("node-1", "node-2")
    argv = spec.argv(1, 20100)
    expected = {"--no_ssh", "--node_rank=1", "--master_addr=10.0.0.1", "--master_port=20100"}
    frozen = f"--hostfile={tmp_path / 'attempt' / 'hostfile'}"
    assert {*expected, frozen} <= set(argv)
    assert "--include=node-1:1,2,3,4,5,6,7@node-2:0,1,2,3,4,5,6,7" in argv
    assert spec.working_directory == str(tmp_path / "attempt")


def test_the_first_host_is_the_address_unless_a_better_one_is_known(tmp_path: Path) -> None:
    config = load_config([*GPUS, two_hosts(tmp_path)])
    cluster = plan_run(config).cluster
    assert cluster is not None
    for found, expected in ((None, "node-1"), ("10.1.0.1", "10.1.0.1")):
        spec = launch_spec(config, cluster, tmp_path, working_directory=tmp_path, master_addr=found)
        assert f"--master_addr={expected}" in spec.launcher


def test_pdsh_starts_all_hosts_from_one_launcher_here(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, *GPUS, two_hosts(tmp_path), "launcher=pdsh", "launcher.ssh_arguments=[-p, '2222']")
    assert spec.agent_hosts == ("localhost",)
    argv = spec.argv(0, 20100)
    assert {"--launcher=pdsh", "--force_multi", "--master_addr=node-1"} <= set(argv)
    assert not any(word.startswith("--node_rank") for word in argv)
    assert "-p 2222" in spec.environment["PDSH_SSH_ARGS_APPEND"]


def test_one_host_that_is_another_machine_is_not_started_here(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("gpu-node-07 slots=8\n")
    assert spec_of(tmp_path, *GPUS, f"cluster.hostfile={tmp_path / 'mine'}").agent_hosts == ("gpu-node-07",)


def test_through_pdsh_workers_get_their_variables_and_nobody_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's own runner, with a ``pdsh`` that runs what it was given here, once."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hush")
    setup = """launcher.setup=['export FROM_SETUP=\"it is $WANDB_MODE\"']"""
    spec = spec_of(tmp_path, *GPUS, two_hosts(tmp_path), "launcher=pdsh", setup, "launcher.environment={A: 'x $b {1,2}'}")
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    (attempt / HOSTFILE).write_text("node-1 slots=8\nnode-2 slots=8\n")
    (attempt / WORKER_ENVIRONMENT).write_text(worker_environment_text(attempt, spec.environment, spec.setup))
    write_private(attempt, {"WANDB_API_KEY": "it's $hush"})
    assert (attempt / "private_env.sh").stat().st_mode & 0o077 == 0
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "pdsh").write_text('#!/bin/bash\necho "GIVEN $@"\nshift 5\nbash -c "${*//deepspeed.launcher.launch/fake_launch}"\n')
    (fake / "pdsh").chmod(0o755)
    show = "import os\nfor n in ('A', 'WANDB_MODE', 'WANDB_API_KEY', 'FROM_SETUP'): print('GOT', n, os.environ[n])\n"
    (attempt / "fake_launch.py").write_text(show)
    environment = {**os.environ, **spec.environment}
    environment["PATH"] = f"{fake}:{environment['PATH']}"
    words = without({"MLFLOW_TRACKING_TOKEN": ""}, spec.argv(0, 20100))
    ended = subprocess.run(words, cwd=attempt, env=environment, capture_output=True, text=True, timeout=120, check=True)
    (given,) = [line for line in ended.stdout.splitlines() if line.startswith("GIVEN")]
    assert "node-1,node-2" in given
    assert f"cd {attempt}" in given
    got = dict(line.split(" ", 2)[1:] for line in ended.stdout.splitlines() if line.startswith("GOT"))
    expected = {"A": "x $b {1,2}", "WANDB_MODE": "offline", "WANDB_API_KEY": "it's $hush", "FROM_SETUP": "it is offline"}
    assert got == expected
    assert ended.stdout.count("hush") == 1
    assert "hush" not in ended.stderr


@pytest.mark.parametrize(
    ("overrides", "visible", "field"),
    [
        (["cluster.hosts=2"], "", "cluster.hostfile"),
        (["HOSTFILE", "launcher=local"], "", "launcher.backend"),
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
    spec = spec_of(tmp_path, "launcher.environment={GLOO_SOCKET_IFNAME: 'lo x'}")
    words = shlex.split(spec.shell())
    argv = spec.argv(0, spec.master_port or 0)
    assert words[:3] == ["cd", str(tmp_path), "&&"]
    assert "GLOO_SOCKET_IFNAME=lo x" in words
    assert tuple(words[-len(argv) :]) == argv
