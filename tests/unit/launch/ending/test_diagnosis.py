"""Why a job failed, read from logs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from orchestrator.launch.ending.causes import CAUSES
from orchestrator.launch.ending.diagnosis import MOST_BYTES, diagnose, end_of_log

LOGS = Path(__file__).parents[3] / "data" / "logs"
LAUNCHER = "[2026-11-30 09:01:44,311] [ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = "


def test_the_rank_that_failed_first_is_found_behind_the_noise_of_the_others():
    found = diagnose(end_of_log(LOGS / "device_out_of_memory_two_hosts.log")).to_dict()
    assert (found["cause"], found["host"], found["rank"], found["line"]) == ("device-out-of-memory", "node-b", 3, 10)
    assert found["exit_code"] == 1
    assert "Tried to allocate 2.00 GiB" in found["lines"][-1]
    assert not any("NCCL" in line for line in found["lines"])
    assert [(other["cause"], other["host"], other["rank"]) for other in found["others"]] == [("peer-gone", "node-a", 0)]


LINES = {
    "setup": ["launcher.setup failed: module load cuda/99 (exit code 127)"],
    "device-out-of-memory": [
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "torch.AcceleratorError: CUDA error: out of memory",
        "Cuda failure 2 'out of memory'",
    ],
    "host-out-of-memory": [LAUNCHER + "-9", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"],
    "shared-memory": [LAUNCHER + "-7", "RuntimeError: unable to write to file </torch_41_7>: No space left on device (28)"],
    "segmentation-fault": [LAUNCHER + "-11", "traceback : Signal 11 (SIGSEGV) received by PID 7"],
    "disk-full": ["OSError: [Errno 28] No space left on device"],
    "open-files": ["OSError: [Errno 24] Too many open files"],
    "port-in-use": ["torch.distributed.DistNetworkError: failed to bind to port 29500, EADDRINUSE, address already in use"],
    "host-name": ["ssh: Could not resolve hostname node-z: Name or service not known"],
    "ssh-refused": [
        "root@node-b: Permission denied (publickey).",
        "Host key verification failed.",
        "ssh: connect to host node-b port 22: No route to host",
    ],
    "launcher-argument": ["train.py: error: unrecognized arguments: --local_rank=1"],
    "batch-arithmetic": ["AssertionError: Check batch related parameters. train_batch_size is not equal to 8 != 2 * 1 * 1"],
    "deepspeed-config": ["pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig"],
    "missing-module": ["ModuleNotFoundError: No module named 'flash_attn'", "bash: deepspeed: command not found"],
    "shared-library": ["ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory"],
    "ops-build": ["RuntimeError: Error building extension 'cpu_adam'"],
    "driver": ["RuntimeError: CUDA error: no kernel image is available for execution on the device"],
    "devices": ["RuntimeError: CUDA error: invalid device ordinal", "RuntimeError: No CUDA GPUs are available"],
    "device-fault": ["torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"],
    "loss-scale": ["Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."],
    "diverged": ["FloatingPointError: the loss is nan at step 12: the training has diverged"],
    "nvme-buffers": ["AssertionError: Not enough buffers 4 for swapping 5"],
    "different-batches": ["AssertionError: Data inconsistency within the TP group. Please check the Dataloader"],
    "collective-timeout": ["RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv"],
    "peer-gone": ["RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1931"],
}


@pytest.mark.parametrize("name", [cause.name for cause in CAUSES])
def test_every_cause_is_known_by_what_it_prints(name):
    for line in LINES[name]:
        found = diagnose(["some output", line]).first
        assert found is not None, line
        assert found.cause.name == name
        assert found.cause.fix


def test_what_others_lost_never_hides_what_a_rank_said_later():
    gone, own = LINES["peer-gone"][0], "[rank1]: ModuleNotFoundError: No module named 'flash_attn'"
    found = diagnose([f"[rank0]: {gone}", own])
    assert found.first is not None
    assert (found.first.cause.name, found.first.line.rank) == ("missing-module", 1)


def test_an_exception_that_is_not_known_is_the_rank_s_own_words():
    log = [
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/work/train.py", line 3, in <module>',
        "[rank2]:     weights[name]",
        "[rank2]: KeyError: 'lm_head'",
        "[rank0]: Traceback (most recent call last):",
        f"[rank0]: {LINES['peer-gone'][0]}",
        LAUNCHER + "1",
    ]
    found = diagnose(log).to_dict()
    assert (found["cause"], found["rank"], found["exit_code"]) == ("exception", 2, 1)
    assert found["lines"][-1] == "KeyError: 'lm_head'"
    assert found["lines"][0].startswith("Traceback")


@pytest.mark.parametrize(
    "log",
    [
        [],
        ["step 1", "step 2"],
        ["[W socket.cpp:697] [c10d] The client socket has failed to connect (errno: 111 - Connection refused)."],
        ["[2026-11-30 09:00:00,000] [WARNING] [engine.py:1] No space left on device would be bad"],
        ["the documentation says ValueError: is raised here"],
    ],
)
def test_a_log_without_a_failure_is_not_explained(log):
    found = diagnose(log)
    assert found.first is None
    assert found.to_dict()["verdict"] == "unexplained"
    assert [line.text for line in found.context] == log


def test_a_log_can_come_through_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("Too many open files\n"))
    writer.start()
    assert end_of_log(pipe) == ["Too many open files"]
    writer.join()


def test_of_a_long_log_the_end_is_read(tmp_path):
    log = tmp_path / "long.log"
    with log.open("wb") as file:
        file.truncate(MOST_BYTES + 1000)
        file.seek(0, 2)
        file.write(b"\nKilled\xff\nMemoryError\n")
    lines = end_of_log(log)
    assert lines[-1] == "MemoryError"
    found = diagnose(lines).first
    assert found is not None
    assert found.cause.name == "host-out-of-memory"
