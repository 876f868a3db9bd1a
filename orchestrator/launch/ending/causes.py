"""What makes a DeepSpeed job fail: how each cause shows in a log, what it means, and what to do.

The texts are those of torch 2, NCCL 2, gloo, OpenSSH and DeepSpeed 0.19; a message that only says that a peer has gone is a
consequence, whose cause is elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A known cause of a failure. ``pattern`` is searched in single lines."""

    name: str
    pattern: re.Pattern[str]
    meaning: str
    fix: str
    is_consequence: bool = False
    """Whether another rank or host has failed before."""


def _cause(name: str, pattern: str, meaning: str, fix: str, *, is_consequence: bool = False) -> Cause:
    return Cause(name=name, pattern=re.compile(pattern), meaning=meaning, fix=fix, is_consequence=is_consequence)


HOST_OUT_OF_MEMORY = "host-out-of-memory"

CAUSES: tuple[Cause, ...] = (
    _cause(
        "setup",
        r"^launcher\.setup failed: ",
        "a line of launcher.setup failed on a host",
        "try the line in bash on that host, in a shell that is not a login shell: ssh HOST bash -c LINE",
    ),
    _cause(
        "device-out-of-memory",
        r"OutOfMemoryError|(CUDA|HIP)( error:)? out of memory|Cuda failure.*out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "a device ran out of memory",
        "orchestrator validate shows what each rank needs and which change makes it fit; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps where the rest is fragmented",
    ),
    _cause(
        HOST_OUT_OF_MEMORY,
        r"(return code = |exitcode\s*: )-9\b|\bSignal 9 \(SIGKILL\)|oom-kill|Out of memory: Killed process"
        r"|DefaultCPUAllocator: (can't|not enough)|Cannot allocate memory|\bMemoryError\b",
        "a process was killed or refused memory: most likely the host's RAM, or the limit of its container, was used up",
        "orchestrator validate shows the RAM of a host; offload less, do not page-lock (offload.pin_memory=false), or use more "
        "hosts; dmesg on the host names what the kernel killed",
    ),
    _cause(
        "shared-memory",
        r"(return code = |exitcode\s*: )-7\b|\bBus error\b|\bSignal 7 \(SIGBUS\)|unable to write to file </torch_"
        r"|/dev/shm.*No space",
        "/dev/shm is too small",
        "start the container with --ipc=host or --shm-size=16g",
    ),
    _cause(
        "segmentation-fault",
        r"(return code = |exitcode\s*: )-11\b|Segmentation fault|\bSignal 11 \(SIGSEGV\)",
        "a process crashed in compiled code",
        "give all hosts the same versions, and remove TORCH_EXTENSIONS_DIR so that DeepSpeed's ops are built again",
    ),
    _cause(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "a disk is full",
        "orchestrator validate shows what checkpoints and NVMe offload take; keep fewer with checkpoint.keep",
    ),
    _cause(
        "open-files",
        r"Too many open files",
        "the limit of open files was reached",
        "raise it where the workers start: ulimit -n 65536",
    ),
    _cause(
        "port-in-use",
        r"EADDRINUSE|[Aa]ddress already in use",
        "the rendezvous port is taken, often by an earlier run",
        "end what listens there, or choose another launcher.master_port",
    ),
    _cause(
        "host-name",
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution|nodename nor servname",
        "a host name cannot be resolved",
        "use names that every host knows, or addresses",
    ),
    _cause(
        "ssh-refused",
        r"Permission denied \(publickey|Host key verification failed|ssh: connect to host .*(refused|timed out|No route)"
        r"|Too many authentication failures",
        "ssh did not let the launcher in",
        "make `ssh -o BatchMode=yes HOST true` work from the launching host to every other, without a question",
    ),
    _cause(
        "launcher-argument",
        r"unrecognized arguments: --local[_-]rank",
        "the launcher adds --local_rank to the script's arguments",
        "start it with deepspeed --no_local_rank, or let the script accept the argument",
    ),
    _cause(
        "batch-arithmetic",
        r"Check batch related parameters",
        "train_batch_size is not micro-batch x accumulation x data-parallel size",
        "orchestrator validate deepspeed_json=FILE world_size=N says which number to change",
    ),
    _cause(
        "deepspeed-config",
        r"DeepSpeedConfigError|validation errors? for \w*(DeepSpeed|Zero|Config)\w*"
        r"|Expected a string path to an existing deepspeed config",
        "DeepSpeed refuses its configuration",
        "orchestrator validate deepspeed_json=FILE names every key that is wrong, and compile corrects what can be corrected",
    ),
    _cause(
        "missing-module",
        r"ModuleNotFoundError: No module named|ImportError: cannot import name"
        r"|(python\d?|deepspeed|pdsh|srun|mpirun): .*not found",
        "a package or program is missing on the host, or is another version",
        "give every host the same environment at the same path: the launcher uses that of the launching host",
    ),
    _cause(
        "shared-library",
        r"error while loading shared libraries|cannot open shared object file|undefined symbol",
        "a compiled library does not fit the installed packages",
        "install builds for one version of CUDA and torch, and remove TORCH_EXTENSIONS_DIR so that ops are built again",
    ),
    _cause(
        "ops-build",
        r"Error building extension|CUDA_HOME environment variable is not set|CUDAMismatchException|Unable to JIT load",
        "an op of DeepSpeed could not be compiled",
        "install a C++ compiler, ninja and the CUDA toolkit of torch's version; orchestrator doctor says what is missing",
    ),
    _cause(
        "driver",
        r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is available"
        r"|CUDA initialization: .*(Unexpected error|unknown error)",
        "driver, CUDA and the device do not go together",
        "install a torch that fits the driver and the device's compute capability",
    ),
    _cause(
        "devices",
        r"No CUDA GPUs are available|invalid device ordinal|all CUDA-capable devices are busy",
        "a process has no device of its own",
        "start no more processes than the host has free devices (slots in the hostfile, CUDA_VISIBLE_DEVICES, compute mode)",
    ),
    _cause(
        "device-fault",
        r"uncorrectable ECC error|GPU has fallen off the bus|an illegal memory access|NVRM: Xid",
        "a device failed, or a kernel wrote where it must not",
        "take the host out and look at its dmesg; if it repeats on other hosts, CUDA_LAUNCH_BLOCKING=1 finds the kernel",
    ),
    _cause(
        "loss-scale",
        r"Current loss scale already at minimum",
        "fp16 overflowed at the smallest loss scale: the training has diverged",
        "use bf16, a lower learning rate, or a longer warmup",
    ),
    _cause(
        "diverged",
        r"FloatingPointError|the training has diverged",
        "the loss or the gradients are not finite any more",
        "use a lower learning rate, a longer warmup, or training.gradient_clipping",
    ),
    _cause(
        "nvme-buffers",
        r"Not enough buffers|ran out of swap buffers|not in available swap",
        "NVMe offload has fewer swap buffers than parameters in use",
        "set zero.stage3_max_live_parameters=0 zero.stage3_max_reuse_distance=0, or a larger buffer_count",
    ),
    _cause(
        "different-batches",
        r"check_dataloader_inputs_same_across_ranks|Data inconsistency within the TP group",
        "ranks that share layers read different batches",
        "let the sampler depend on the data-parallel rank only",
    ),
    _cause(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms|wait timeout after|Collective .*timed out"
        r"|DistStoreError.*[Tt]imed out|[Tt]imed out after \d+ seconds waiting for clients",
        "a collective or the rendezvous waited longer than it may: a rank is missing, hung or far behind",
        "find the rank that did not come: it takes another path, is far behind, or its host is not reachable on the network "
        "interface that was chosen (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)",
        is_consequence=True,
    ),
    _cause(
        "peer-gone",
        r"Connection (closed|reset) by peer|connection reset|Broken pipe|remote process exited|ncclRemoteError|ncclSystemError"
        r"|NCCL communicator was aborted|socketProgress|[Cc]onnection refused|recvValue failed|SIGTERM",
        "another rank, or the network to it, has gone",
        "the cause is in the output of another rank or host",
        is_consequence=True,
    ),
)
"""All of them; of several that a line shows the first counts."""

EXCEPTION = Cause(
    name="exception",
    pattern=re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Failure|Iteration)\b(?::|$)"),
    meaning="a rank raised an exception",
    fix="read the lines above: they are its own",
)
"""A Python exception that none of ``CAUSES`` knows."""
WARNING = re.compile(r"^\s*\[W|\[(WARNING|INFO|DEBUG)\]|\bWarning: ")
"""A line that is only a warning or a remark."""
