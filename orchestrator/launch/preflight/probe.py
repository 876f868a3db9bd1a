"""What a host is, as one JSON object: a script of the standard library alone, for whatever Python is there.

The text of this file is piped to ``python -I -`` of every host with a call of ``main`` appended (``fan_out.script``), so that
nothing need be installed there. Every fact is looked up in a thread of its own: one that fails or hangs (a dead network disk)
is reported under ``unknown`` with the reason, and the others are there all the same. It keeps to what Python 3.8 can run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import platform
import pwd
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any

MARK = "ORCHESTRATOR-PROBE "
"""Comes before each answer: login scripts may print to the same stream."""

_SMALL_BYTES = 1 << 20
_PART_BYTES = 1 << 16
_MOST_FILES = 100_000
_MOST_HASHED = 2_000
_LIBAIO_HEADERS = ("/usr/include/libaio.h", "/usr/local/include/libaio.h", f"{sys.prefix}/include/libaio.h")
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
OWN_GROUPS = Path("/proc/self/cgroup")
CONTROL_GROUPS = (
    ("", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("", "/sys/fs/cgroup/unified", "memory.max", "memory.current", "inactive_file"),
    ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Controller in ``/proc/self/cgroup``, where it is mounted, and the files of limit and use: version 2, hybrid, version 1."""


def main(text: str) -> None:
    """Print the facts that a request (JSON) asks for. Never raises for what a host may be like."""
    request = json.loads(text)
    # a probe whose caller has gone must not stay for ever
    signal.alarm(int(request["seconds"]) + 5)
    sys.path[:0] = request["search"]
    print(MARK + json.dumps(facts(request)), flush=True)
    # a thread that hangs in a dead disk would keep the interpreter here
    os._exit(0)


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Every fact of this host; what could not be had is ``None``, and ``unknown`` says why."""
    started = time.time()
    known: dict[str, Any] = dict.fromkeys(FACTS)
    unknown: dict[str, str] = {}

    def look(name: str, fact: Callable[[dict[str, Any]], Any]) -> None:
        try:
            known[name] = fact(request)
        except Exception as problem:
            unknown[name] = f"{type(problem).__name__}: {problem}"

    threads = {name: threading.Thread(target=look, args=(name, fact), daemon=True) for name, fact in FACTS.items()}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + float(request["seconds"]) * 0.8
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            unknown[name] = "no answer in time: does a disk hang?"
    return {**known, "unknown": dict(unknown), "clock": {"started": started, "ended": time.time()}}


def addresses(_request: dict[str, Any]) -> list[dict[str, Any]]:
    """IPv4 addresses of this host beyond itself, with the length of their network prefix."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                # SIOCGIFADDR and SIOCGIFNETMASK
                address, mask = (fcntl.ioctl(control, number, asked)[20:24] for number in (0x8915, 0x891B))
            except OSError:
                continue
            if address[0] != 127:
                prefix = bin(int.from_bytes(mask, "big")).count("1")
                found.append({"interface": name, "address": socket.inet_ntoa(address), "prefix": prefix})
    return found


def packages(request: dict[str, Any]) -> dict[str, str | None]:
    """Versions of the packages of training; ``None`` for those that are not installed."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {name: version(name) for name in request["packages"]}


def project(_request: dict[str, Any]) -> dict[str, str] | None:
    """Where this project is imported from on this host, its version, and one hash over its sources; ``None`` without it."""
    spec = util.find_spec("orchestrator")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return {"version": metadata.version("orchestrator"), "path": str(folder), "digest": digest.hexdigest()[:16]}


def torch_cuda(_request: dict[str, Any]) -> str | None:
    """The CUDA that the installed torch was built for, read from its files; ``None`` for another torch, or none."""
    for place in sys.path:
        try:
            lines = Path(place, "torch", "version.py").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        named = [line.partition("=")[2].strip().strip("'\"") for line in lines if line.startswith("cuda")]
        return named[0] if named and named[0] != "None" else None
    return None


def devices(_request: dict[str, Any]) -> dict[str, Any]:
    """NVIDIA devices with the driver: from NVML where its Python package is installed, else from ``nvidia-smi``."""
    try:
        import pynvml
    except ImportError:
        return _devices_of_smi()
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return {"driver": None, "cuda": None, "devices": []}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        return {
            "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "devices": [_nvml_device(pynvml, handle) for handle in handles],
        }
    finally:
        pynvml.nvmlShutdown()


def _nvml_device(pynvml: Any, handle: Any) -> dict[str, Any]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)

    def where_there(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except pynvml.NVMLError:
            return None

    running = where_there(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    mode = where_there(lambda: pynvml.nvmlDeviceGetComputeMode(handle))
    kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return {
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "compute_mode": _COMPUTE_MODES.get(mode),
        "ecc_errors": where_there(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter)),
        "processes": [_process(process.pid, process.usedGpuMemory) for process in running],
    }


def _devices_of_smi() -> dict[str, Any]:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {"driver": None, "cuda": None, "devices": []}
    fields = "uuid,name,memory.total,memory.free,compute_mode,ecc.errors.uncorrected.volatile.total,driver_version"
    rows = list(_smi_rows(smi, f"--query-gpu={fields}"))
    running: dict[str, list[dict[str, Any]]] = {}
    for uuid, pid, used in _smi_rows(smi, "--query-compute-apps=gpu_uuid,pid,used_memory"):
        running.setdefault(uuid, []).append(_process(int(pid), _mib(used)))
    found = [
        {
            "name": name,
            "total_bytes": _mib(total),
            "free_bytes": _mib(free),
            "compute_mode": mode,
            "ecc_errors": int(errors) if errors.isdigit() else None,
            "processes": running.get(uuid, []),
        }
        for uuid, name, total, free, mode, errors, _ in rows
    ]
    return {"driver": rows[0][-1] if rows else None, "cuda": None, "devices": found}


def _smi_rows(smi: str, query: str) -> Iterator[list[str]]:
    ended = subprocess.run(
        [smi, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"nvidia-smi: {(ended.stderr or ended.stdout).strip()[-200:]}")
    for line in ended.stdout.splitlines():
        if line.strip():
            yield [word.strip() for word in line.split(",")]


def _mib(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None


def _process(pid: int, used: int | None) -> dict[str, Any]:
    """A process on a device: its user and program, where this host lets them be seen."""
    user = program = None
    try:
        user = _user(Path(f"/proc/{pid}").stat().st_uid)
        program = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        pass
    return {"pid": pid, "user": user, "program": program, "used_bytes": used}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value.decode()


def memory(_request: dict[str, Any]) -> dict[str, int | None]:
    """RAM of the machine, the lowest limit of this process's control groups, and what a process may still take, in bytes."""
    lines = [line.split() for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()]
    machine = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[2:] == ["kB"]}
    groups = list(memory_groups())
    limits = [limit for limit, _ in groups]
    available = [machine.get("MemAvailable", machine["MemFree"]), *(limit - used for limit, used in groups)]
    return {
        "total_bytes": machine["MemTotal"],
        "limit_bytes": min([machine["MemTotal"], *limits]),
        "available_bytes": max(0, min(available)),
    }


def memory_groups() -> Iterator[tuple[int, int]]:
    """Limit and use of each control group that this process is in, its own first; caches do not count as used."""
    try:
        own = [line.split(":", 2) for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    for controller, mount, limit_name, used_name, cached_name in CONTROL_GROUPS:
        for _, controllers, group in own:
            if controller not in controllers.split(","):
                continue
            # inside a container the group may be one of the machine outside: then only the mount itself is there
            for place in (Path(group), *Path(group).parents):
                folder = Path(mount, *place.parts[1:])
                limit = _number(folder / limit_name)
                if limit is not None:
                    yield limit, max(0, (_number(folder / used_name) or 0) - _cached(folder, cached_name))


def _number(path: Path) -> int | None:
    """The number in a file; ``None`` where there is no file, or no limit (``max``)."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cached(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)


def folders(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """For each option that names a folder to write to: is it there, writable, on what file system, with how much room."""
    return {option: _folder(Path(path)) for option, path in request["folders"].items()}


def _folder(path: Path) -> dict[str, Any]:
    place = _existing(path)
    disk = shutil.disk_usage(place)
    return {
        "path": str(path),
        "exists": path.is_dir(),
        "writable": place.is_dir() and os.access(place, os.W_OK | os.X_OK),
        "file_system": _file_system(place),
        "total_bytes": disk.total,
        "free_bytes": disk.free,
    }


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    return next(place for place in (path, *path.parents) if place.exists())


def _file_system(path: Path) -> str | None:
    """The type of the file system that ``path`` is on: that of the longest mount point above it, the last one mounted there."""
    mounts = [
        line.split()[1:3] for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    points = [(Path(point.replace("\\040", " ")), kind) for point, kind in mounts]
    above = [(len(point.parts), number, kind) for number, (point, kind) in enumerate(points) if point in _with_parents(path)]
    return max(above)[2] if above else None


def _with_parents(path: Path) -> set[Path]:
    real = path.resolve()
    return {real, *real.parents}


def direct_io(request: dict[str, Any]) -> str | None:
    """Why the swap folder cannot be written past the page cache (O_DIRECT), as asynchronous I/O does; ``None`` if it can."""
    if "offload.nvme_path" not in request["folders"]:
        return None
    folder = _existing(Path(request["folders"]["offload.nvme_path"]))
    try:
        descriptor, path = tempfile.mkstemp(dir=folder, prefix=".orchestrator_probe_")
    except OSError as problem:
        return str(problem.strerror)
    os.close(descriptor)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, mmap.PAGESIZE) as page:
                os.write(descriptor, page)
        finally:
            os.close(descriptor)
    except OSError as problem:
        return str(problem.strerror)
    finally:
        Path(path).unlink()
    return None


def files(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """For each option that names what workers read: is it there, its bytes, and a hash that is equal where the content is."""
    found = {}
    for option, path in request["files"].items():
        try:
            found[option] = _content(Path(path))
        except PermissionError:
            found[option] = {"path": path, "exists": True, "readable": False, "bytes": 0, "digest": None}
    return found


def _content(path: Path) -> dict[str, Any]:
    """Small files are hashed whole, large ones by size, head and tail; of a very large folder the first files only."""
    names = _named(path)
    if not names and not path.exists():
        return {"path": str(path), "exists": False, "readable": False, "bytes": 0, "digest": None}
    digest, total = hashlib.sha256(), 0
    for number, name in enumerate(names):
        size = name.stat().st_size
        total += size
        # of a single file the name does not count
        digest.update(f"{str(name).removeprefix(str(path))}\0{size}\0".encode())
        if number < _MOST_HASHED:
            with name.open("rb") as file:
                digest.update(file.read(size if size <= _SMALL_BYTES else _PART_BYTES))
                if size > _SMALL_BYTES:
                    file.seek(-_PART_BYTES, os.SEEK_END)
                    digest.update(file.read(_PART_BYTES))
    readable = all(os.access(place, os.R_OK) for place in ([path] if path.exists() else names))
    return {"path": str(path), "exists": True, "readable": readable, "bytes": total, "digest": digest.hexdigest()[:16]}


def _named(path: Path) -> list[Path]:
    """The files of a folder, a file, or the pair of Megatron's token files that a path without an ending stands for."""
    if path.exists():
        return [path] if path.is_file() else sorted(_walk(path))
    pair = [path.with_name(f"{path.name}.bin"), path.with_name(f"{path.name}.idx")]
    return pair if all(file.is_file() for file in pair) else []


def _walk(folder: Path) -> Iterable[Path]:
    found: list[Path] = []
    for place, _, names in os.walk(folder):
        found += [path for path in (Path(place, name) for name in names) if path.is_file()]
        if len(found) > _MOST_FILES:
            break
    return found


def shared(request: dict[str, Any]) -> bool | None:
    """Whether this host sees the file that the launching host has just written; ``None`` if it wrote none."""
    token = request["token"]
    if token is None:
        return None
    try:
        return Path(token["path"]).read_text(encoding="ascii") == str(token["text"])
    except OSError:
        return False


def operators(request: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's compiled operators that are built here, and locks of builds with their age in seconds.

    Without ``TORCH_EXTENSIONS_DIR`` torch puts a folder for the Python and device version in between.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(request["extensions_dir"] or Path(cache, "torch_extensions"))
    places = [folder, *folder.glob("py*")]
    locks = sorted(path for place in places for path in place.glob("*/lock") if path.is_file())
    return {
        "folder": str(folder),
        "built": {name: any((place / name / f"{name}.so").exists() for place in places) for name in request["operators"]},
        "locks": {str(path): time.time() - path.stat().st_mtime for path in locks},
    }


def tools(request: dict[str, Any]) -> dict[str, str | None]:
    """Where the programs are, beside this Python or on PATH; ``libaio`` is the header that NVMe offload is compiled with."""

    def find(name: str) -> str | None:
        if name == "libaio":
            return next((path for path in _LIBAIO_HEADERS if Path(path).exists()), None)
        beside = Path(sysconfig.get_path("scripts"), name)
        return str(beside) if beside.is_file() else shutil.which(name)

    return {name: find(name) for name in request["tools"]}


def port_is_free(request: dict[str, Any]) -> bool | None:
    """Whether this host can listen on the rendezvous port; ``None`` if none was asked for."""
    if request["port"] is None:
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", request["port"]))
        except OSError:
            return False
    return True


FACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "hostname": lambda _request: socket.gethostname(),
    "addresses": addresses,
    "python": lambda _request: platform.python_version(),
    "packages": packages,
    "project": project,
    "torch_cuda": torch_cuda,
    "accelerators": devices,
    "num_cores": lambda _request: len(os.sched_getaffinity(0)),
    "memory": memory,
    "shared_memory_bytes": lambda _request: shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0,
    "open_files": lambda _request: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "folders": folders,
    "direct_io": direct_io,
    "files": files,
    "shared": shared,
    "operators": operators,
    "tools": tools,
    "port_is_free": port_is_free,
}
