"""The probe as hosts run it: a script on the standard input of an isolated Python, and what it says of an odd host."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil
import pynvml
import pytest

from orchestrator.launch.ports import free_port
from orchestrator.launch.preflight import probe, reach
from orchestrator.launch.preflight.facts import facts_from_probe
from orchestrator.launch.preflight.fan_out import script

REQUEST: dict[str, Any] = {
    "seconds": 20,
    "search": [],
    "packages": ["deepspeed", "no-such-package"],
    "folders": {},
    "files": {},
    "token": None,
    "port": None,
    "extensions_dir": None,
    "operators": ["cpu_adam"],
    "tools": ["sh", "no-such-tool", "libaio"],
}


SMI = """#!/bin/sh
case $1 in
*query-gpu*)
  echo "GPU-1, NVIDIA H100, 81559, 81000, Default, 0, 570.1"
  echo "GPU-2, NVIDIA H100, 81559, 900, Prohibited, [N/A], 570.1" ;;
*) echo "GPU-2, 1, 80000" ;;
esac
"""


def probed(**request: Any) -> dict[str, Any]:
    text = script(probe, {**REQUEST, **request})
    ended = subprocess.run(
        [sys.executable, "-I", "-"], input=text, capture_output=True, text=True, timeout=60, check=True, cwd="/"
    )
    assert ended.stdout.startswith(probe.MARK)
    value: dict[str, Any] = json.loads(ended.stdout[len(probe.MARK) :])
    return value


@pytest.fixture
def listening_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_probe_knows_its_host() -> None:
    before = time.time()
    found = probed(search=[str(Path.cwd())])
    facts = facts_from_probe(found, asked=before, received=time.time())
    assert facts.unknown == {}
    assert facts.hostname == socket.gethostname()
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert facts.packages == {"deepspeed": facts.packages and facts.packages["deepspeed"], "no-such-package": None}
    assert facts.project is not None and Path(facts.project.path) == Path.cwd() / "orchestrator"
    assert facts.memory is not None and 0 < facts.memory.available_bytes <= facts.memory.limit_bytes <= facts.memory.total_bytes
    assert facts.memory.total_bytes == psutil.virtual_memory().total
    assert facts.tools is not None and facts.tools["sh"] and facts.tools["no-such-tool"] is None
    assert facts.clock_skew is not None and facts.clock_skew[0] <= 0 <= facts.clock_skew[1]


def test_addresses_come_with_their_networks() -> None:
    own = {
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family is socket.AF_INET and not entry.address.startswith("127.")
    }
    found = probed()["addresses"]
    assert {entry["address"] for entry in found} <= own
    assert bool(found) == bool(own)
    assert all(0 < entry["prefix"] <= 32 for entry in found)


def test_a_taken_port_is_seen(listening_port: int) -> None:
    assert probed(port=listening_port)["port_is_free"] is False
    assert probed(port=free_port())["port_is_free"] is True


def test_folders_that_do_not_exist_yet_are_judged_by_what_is_above_them(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = {
        "run_dir": str(tmp_path / "a" / "b"),
        "offload.nvme_path": str(tmp_path),
        "data.cache_dir": str(tmp_path / "file" / "x"),
    }
    found = probed(folders=folders)
    assert (found["folders"]["run_dir"]["exists"], found["folders"]["run_dir"]["writable"]) == (False, True)
    assert found["folders"]["offload.nvme_path"]["exists"]
    assert found["folders"]["data.cache_dir"]["writable"] is False
    assert found["folders"]["run_dir"]["free_bytes"] > 0
    assert not [path for path in tmp_path.iterdir() if path.name != "file"]


def test_a_folder_in_memory_is_told_from_one_on_a_disk() -> None:
    assert probed(folders={"run_dir": "/dev/shm/not/there"})["folders"]["run_dir"]["file_system"] == "tmpfs"
    assert probed(folders={"run_dir": "/proc/nothing"})["folders"]["run_dir"]["file_system"] == "proc"


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_equal_content_has_an_equal_hash_and_other_content_another(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    for name, tail in (("a", b""), ("b", b""), ("c", b"!")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(content[: size - len(tail)] + tail)
    files = probed(files={name: str(tmp_path / name) for name in "abcd"} | {"file": str(tmp_path / "a" / "weights")})["files"]
    assert files["a"]["digest"] == files["b"]["digest"] != files["c"]["digest"]
    assert files["a"]["bytes"] == files["file"]["bytes"] == size
    assert files["d"]["exists"] is False


def test_a_file_that_must_not_be_read_is_named_and_the_others_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).write_text("text")
    opened = Path.open

    def refused(path: Path, mode: str) -> IO[Any]:
        if path.name == "theirs":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", refused)
    found = probe.files({"files": {name: str(tmp_path / name) for name in ("mine", "theirs")}})
    assert [(entry["exists"], entry["readable"]) for entry in found.values()] == [(True, True), (True, False)]


def test_the_prefix_of_two_token_files_stands_for_both(tmp_path: Path) -> None:
    for folder, index in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.bin").write_bytes(b"tokens")
        (tmp_path / folder / "text.idx").write_bytes(index)
    (tmp_path / "d.bin").touch()
    named = {"a": "a/text", "b": "b/text", "c": "c/text", "d": "d"}
    files = probed(files={name: str(tmp_path / path) for name, path in named.items()})["files"]
    assert files["a"]["digest"] == files["b"]["digest"] != files["c"]["digest"]
    assert [files[name]["exists"] for name in "abcd"] == [True, True, True, False]
    assert files["a"]["bytes"] == 7


def test_only_a_host_that_sees_the_launching_hosts_file_shares_its_disk(tmp_path: Path) -> None:
    token = {"path": str(tmp_path / "token"), "text": "abc"}
    assert probed(token=token)["shared"] is False
    (tmp_path / "token").write_text("abc")
    assert probed(token=token)["shared"] is True


def test_built_operators_and_locks_are_found(tmp_path: Path) -> None:
    (tmp_path / "py311_cpu" / "cpu_adam").mkdir(parents=True)
    (tmp_path / "py311_cpu" / "cpu_adam" / "cpu_adam.so").touch()
    (tmp_path / "py311_cpu" / "cpu_adam" / "lock").touch()
    found = probed(extensions_dir=str(tmp_path))["operators"]
    assert found["built"] == {"cpu_adam": True}
    assert [Path(path).name for path in found["locks"]] == ["lock"]


def test_a_fact_that_fails_or_hangs_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()

    def fails(_request: dict[str, Any]) -> None:
        raise PermissionError("not for you")

    monkeypatch.setitem(probe.FACTS, "memory", fails)
    monkeypatch.setitem(probe.FACTS, "files", lambda _request: hangs.wait(30))
    found = probe.facts({**REQUEST, "seconds": 1})
    hangs.set()
    assert found["memory"] is None and "not for you" in found["unknown"]["memory"]
    assert found["files"] is None and "hang" in found["unknown"]["files"]
    assert found["python"]
    assert facts_from_probe(found, asked=0.0, received=0.0).memory is None


@pytest.mark.parametrize(
    ("own", "files", "limits"),
    [
        ("0::/job/step\n", {"job/memory.max": "1000", "job/step/memory.max": "max"}, [(1000, 0)]),
        (
            "0::/job\n",
            {"job/memory.max": "1000", "job/memory.current": "700", "job/memory.stat": "inactive_file 200\n"},
            [(1000, 500)],
        ),
        ("0::/elsewhere\n", {"memory.max": "2000"}, [(2000, 0)]),
        ("4:memory:/job\n0::/\n", {"v1/job/memory.limit_in_bytes": "3000"}, [(3000, 0)]),
        ("5:cpu:/job\n", {"v1/job/memory.limit_in_bytes": "3000"}, []),
    ],
)
def test_the_limits_of_a_processs_own_control_groups_are_found(
    own: str, files: dict[str, str], limits: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(own)
    groups = probe.CONTROL_GROUPS
    monkeypatch.setattr(probe, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(
        probe, "CONTROL_GROUPS", [("", str(tmp_path), *groups[0][2:]), ("memory", str(tmp_path / "v1"), *groups[2][2:])]
    )
    assert list(probe.memory_groups()) == limits


def test_devices_are_read_from_nvml_with_what_each_of_them_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=80 << 30, free=70 << 30)

    def has_no_ecc(*_: object) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    answers: dict[str, object] = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetName": b"NVIDIA L4",
        "nvmlDeviceGetComputeMode": 3,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=5)],
        "nvmlSystemGetDriverVersion": "570.1",
        "nvmlSystemGetCudaDriverVersion": 12080,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEccErrors", has_no_ecc)
    found = probe.devices(REQUEST)
    (device,) = found["devices"]
    assert (found["driver"], found["cuda"]) == ("570.1", "12.8")
    assert (device["name"], device["free_bytes"], device["compute_mode"]) == ("NVIDIA L4", 70 << 30, "Exclusive_Process")
    assert device["ecc_errors"] is None
    assert device["processes"][0]["program"] and device["processes"][0]["user"]


def test_a_host_without_a_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert probe.devices(REQUEST)["devices"] == []


def test_devices_are_read_from_nvidia_smi_where_nvml_has_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = probe.devices(REQUEST)
    first, second = found["devices"]
    assert found["driver"] == "570.1"
    assert (first["total_bytes"], first["ecc_errors"], first["processes"]) == (81559 << 20, 0, [])
    assert (second["free_bytes"], second["compute_mode"], second["ecc_errors"]) == (900 << 20, "Prohibited", None)
    assert second["processes"][0]["pid"] == 1
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'; exit 18\n")
    with pytest.raises(RuntimeError, match="mismatch"):
        probe.devices(REQUEST)


def test_only_the_real_listener_counts_as_reached(listening_port: int) -> None:
    listener = {"task": "listen", "port": 0, "token": "right", "seconds": 20}
    process = subprocess.Popen([sys.executable, "-I", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(script(reach, listener))
    process.stdin.close()
    port = json.loads(process.stdout.readline()[len(probe.MARK) :])["port"]
    call = {"addresses": ["127.0.0.1"], "token": "right", "connect_seconds": 5}
    assert reach.connect({**call, "port": port}) == {"127.0.0.1": None}
    assert reach.connect({**call, "port": port, "token": "wrong"}) != {"127.0.0.1": None}
    assert reach.connect({**call, "port": listening_port, "connect_seconds": 1}) != {"127.0.0.1": None}
    assert "refused" in str(reach.connect({**call, "port": free_port()})["127.0.0.1"]).lower()
    process.stdout.close()
    assert process.wait(30) is not None
    assert "refused" in str(reach.connect({**call, "port": port})["127.0.0.1"]).lower()
