"""Several hosts on one machine: network, UTS, PID, IPC and mount namespaces, a bridge between them, an sshd in each.

A host lives as long as its init process, and that as long as the pipe from the test session: when the session ends, even
by SIGKILL, the kernel ends every process of every host and takes interfaces and mounts away. Nothing gets a name on the
machine itself, so several sessions do not meet and none leaves anything behind.

Each host has its own ``/tmp`` (with what all hosts share mounted into it), ``/dev/shm``, NVMe, root's home, host name,
``/etc/hosts``, and no way out of its network. Memory, CPUs and the rest of the file system are those of the machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cli.command_line import Ended

NVME = Path("/mnt/nvme")
"""Where every host has a disk of its own."""
HOOKS = Path("/mnt/python")
"""A folder of each host's own that comes first on its ``PYTHONPATH``."""
INTERFACE = "eth0"
_SUBNET = "10.211.7"
_SSHD = "/usr/sbin/sshd"
_TOOLS = ("ip", "mount", "nsenter", "pdsh", "ssh", "ssh-keygen", "unshare", _SSHD)
_INIT = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what lost its parent
print("up", flush=True)
sys.stdin.read()
"""
_ALL = ("--net", "--uts", "--ipc", "--pid", "--mount")


def why_not() -> str | None:
    """Why this machine cannot have such hosts; None where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need {', '.join(missing)} (pdsh openssh-server openssh-client iproute2 util-linux)"
    tried = subprocess.run(["unshare", *_ALL, "--fork", "--mount-proc", "true"], capture_output=True, text=True, check=False)
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else None


def command_line(process: psutil.Process) -> str:
    """The words of a process; none if it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def left_on(hosts: Sequence[Host], within: float = 10.0) -> list[str]:
    """What runs on the hosts, once what is about to end has had the time for it: sshd too lets go of a connection later."""
    deadline = time.monotonic() + within
    while (left := [command_line(each) for host in hosts for each in host.processes()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def eventually(holds: Callable[[], object], *, within: float, what: str) -> float:
    """Wait until something holds, and say how many seconds that took."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < within, f"not within {within:.0f} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - start


class Namespaces:
    """A process that holds namespaces open, and ends with everything in them."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds
        fork = ("--fork", "--mount-proc", "--kill-child") if "--pid" in kinds else ()
        argv = ["unshare", *kinds, *fork, sys.executable, "-S", "-c", _INIT]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n", "a namespace did not start"
        self.init = psutil.Process(self._holder.pid).children()[0].pid if fork else self._holder.pid

    def enter(self, argv: Sequence[str], cwd: Path = Path("/")) -> list[str]:
        """``argv``, run inside, in a directory there."""
        return ["nsenter", f"--target={self.init}", *self._kinds, "--", "env", f"--chdir={cwd}", *argv]

    def do(self, *argv: str) -> None:
        """Run a command of the rig itself, which must not fail."""
        ended = subprocess.run(self.enter(argv), capture_output=True, text=True, timeout=30, check=False)
        assert ended.returncode == 0, f"{shlex.join(argv)}: {ended.stderr}"

    def close(self) -> None:
        """End everything inside."""
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait(timeout=30)
        self._holder.stdout.close()


@dataclass
class Started:
    """A process that runs on a host, with its output in ``log``."""

    outer: subprocess.Popen[bytes]
    process: psutil.Process
    log: Path

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within: float) -> int:
        """Its exit code; 128 + N of a signal N."""
        code = self.outer.wait(timeout=within)
        return 128 - code if code < 0 else code

    @property
    def printed(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Host:
    """One host of the rig."""

    name: str
    address: str
    files: Path
    """Outside: what makes the host (keys, sshd's configuration, root's home)."""
    spaces: Namespaces
    switch: Namespaces
    environment: Mapping[str, str]
    """Of commands that are run here, as a login would have it."""
    own: set[int] = field(default_factory=set)
    """Processes of the host itself, by their number outside."""
    _sshd: int | None = None

    @property
    def home(self) -> Path:
        return self.files / "root"

    def path(self, inside: Path) -> Path:
        """A file of this host, as it is reached from outside."""
        return Path(f"/proc/{self.spaces.init}/root") / inside.relative_to("/")

    def run(
        self, *argv: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None, timeout: float = 60
    ) -> Ended:
        """Run a command to its end."""
        ended = subprocess.run(
            self.spaces.enter(argv, cwd or self.home),
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *argv: str, cwd: Path, log: Path, environment: Mapping[str, str] | None = None) -> Started:
        """Start a process, in a session of its own as a terminal would."""
        with log.open("wb") as output:
            outer = subprocess.Popen(
                self.spaces.enter(argv, cwd),
                env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        parent = psutil.Process(outer.pid)
        eventually(lambda: outer.poll() is not None or parent.children(), within=30, what=f"{argv[0]} starts")
        children = parent.children() if outer.poll() is None else []
        return Started(outer=outer, process=children[0] if children else parent, log=log)

    def processes(self, mark: str = "") -> list[psutil.Process]:
        """Living processes on this host that are not its own, as seen from outside.

        With a ``mark``, those only that have it in command line, working directory or environment.
        """
        found = []
        space = _pid_space(self.spaces.init)
        for process in psutil.process_iter():
            try:
                if process.pid in self.own or _pid_space(process.pid) != space or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if any(mark in word for word in (*process.cmdline(), process.cwd(), *process.environ().values())):
                    found.append(process)
            except (psutil.Error, FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def process(self, *words: str, mark: str = "") -> psutil.Process:
        """The only process of a run whose command line has all of ``words`` in it."""
        (found,) = [each for each in self.processes(mark) if all(word in command_line(each) for word in words)]
        return found

    def clear(self) -> None:
        """End every process that is not the host's own, and take away what was left or put in its places."""
        eventually(self._kill_all, within=30, what=f"everything on {self.name} ends")
        self.spaces.do("find", "/dev/shm", str(NVME), str(HOOKS), "-mindepth", "1", "-delete")

    def cut(self) -> None:
        """Take the cable out at the switch: nothing is refused, everything is lost."""
        self.switch.do("ip", "link", "set", self.name, "down")

    def mend(self) -> None:
        self.switch.do("ip", "link", "set", self.name, "up")

    @contextmanager
    def memory(self, mib: int) -> Iterator[None]:
        """Let the host have so much RAM, as far as ``/proc/meminfo`` tells."""
        kinds = {"MemTotal": mib, "MemFree": mib, "MemAvailable": mib, "Buffers": 0, "Cached": 0, "SwapTotal": 0, "SwapFree": 0}
        fake = self.files / "meminfo"
        fake.write_text("".join(f"{name + ':':<16}{size << 10} kB\n" for name, size in kinds.items()))
        self.spaces.do("mount", "--bind", str(fake), "/proc/meminfo")
        try:
            yield
        finally:
            self.spaces.do("umount", "/proc/meminfo")

    def start_sshd(self) -> None:
        """Start it, if it does not run."""
        if self._sshd is not None:
            return
        pid_file = self.files / "sshd.pid"
        pid_file.unlink(missing_ok=True)
        self.spaces.do(_SSHD, "-f", str(self.files / "sshd_config"), "-E", str(self.files / "sshd.log"))
        eventually(lambda: pid_file.exists() and pid_file.read_text(), within=30, what=f"sshd of {self.name} listens")
        inside = pid_file.read_text().strip()
        (process,) = [each for each in self.processes() if _pid_inside(each.pid) == inside]
        self._sshd = process.pid
        self.own.add(process.pid)

    def stop_sshd(self) -> None:
        """Nobody gets in any more; sessions that are open go on."""
        if self._sshd is not None:
            process = psutil.Process(self._sshd)
            process.terminate()
            eventually(lambda: not process.is_running(), within=30, what=f"sshd of {self.name} stops")
            self.own.discard(self._sshd)
            self._sshd = None

    def _kill_all(self) -> bool:
        """Whether there was nothing any more to be killed."""
        living = self.processes()
        for process in living:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return not living


@dataclass(frozen=True)
class Rig:
    """Hosts that reach each other by name, over ssh without a question."""

    switch: Namespaces
    hosts: tuple[Host, ...]
    shared: Path
    """A directory that all hosts have at the same path."""

    def close(self) -> None:
        for host in self.hosts:
            host.spaces.close()
        self.switch.close()


def build(state: Path, shared: Path, nvme_mib: Sequence[int], *, root: Path) -> Rig:
    """Make one host for each size of NVMe, in MiB. ``root`` is the checkout whose code a login there finds."""
    switch = Namespaces(("--net",))
    switch.do("ip", "link", "add", "bridge", "type", "bridge")
    switch.do("ip", "link", "set", "bridge", "up")
    addresses = {f"host{number}": f"{_SUBNET}.{10 + number}" for number in range(len(nvme_mib))}
    (state / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in addresses.items()))
    (state / "resolv.conf").write_text("# no name server\n")
    _keys(state, list(addresses))
    hosts = []
    for (name, address), size in zip(addresses.items(), nvme_mib, strict=True):
        files = state / name
        _write_files(state, files, address, root)
        host = Host(name, address, files, Namespaces(_ALL), switch, _environment(files, root))
        host.own.add(host.spaces.init)
        _network(host)
        _mounts(host, state, [state, shared, root, Path(sys.prefix), Path(sys.base_prefix), *_extensions()], size)
        host.start_sshd()
        hosts.append(host)
    return Rig(switch=switch, hosts=tuple(hosts), shared=shared)


def _keys(state: Path, names: list[str]) -> None:
    """One key that every host has and trusts, one for every sshd, and the list of those."""
    known = []
    for name in ("user", *names):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(state / f"{name}.key")]
        subprocess.run(command, check=True, capture_output=True)
        known.append(f"{name} {(state / f'{name}.key.pub').read_text()}")
    (state / "known_hosts").write_text("".join(known[1:]))


def _write_files(state: Path, files: Path, address: str, root: Path) -> None:
    """sshd's configuration, and a home with an ssh that needs no argument."""
    ssh = files / "root" / ".ssh"
    ssh.mkdir(parents=True)
    for source, target in (("user.key", "id_ed25519"), ("user.key.pub", "authorized_keys"), ("known_hosts", "known_hosts")):
        shutil.copy(state / source, ssh / target)
    lines = [
        f"ListenAddress {address}",
        f"HostKey {state / files.name}.key",
        f"AuthorizedKeysFile {ssh / 'authorized_keys'}",
        f"PidFile {files / 'sshd.pid'}",
        "PermitRootLogin prohibit-password",
        "UsePAM no",
        "StrictModes no",
        "MaxStartups 100",
        f"SetEnv PYTHONPATH={HOOKS}:{root}",
    ]
    (files / "sshd_config").write_text("\n".join(lines) + "\n")
    users = Path("/etc/passwd").read_text().splitlines()
    others = [line for line in users if not line.startswith("root:")]
    (files / "passwd").write_text("\n".join([f"root:x:0:0:root:{files / 'root'}:/bin/bash", *others]) + "\n")


def _environment(files: Path, root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TORCH_EXTENSIONS_DIR")}
    return {
        **kept,
        "HOME": str(files / "root"),
        "PYTHONPATH": f"{HOOKS}:{root}",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
    }


def _extensions() -> list[Path]:
    return [Path(os.environ["TORCH_EXTENSIONS_DIR"])] if "TORCH_EXTENSIONS_DIR" in os.environ else []


def _network(host: Host) -> None:
    peer = ("type", "veth", "peer", "name", INTERFACE, "netns", str(host.spaces.init))
    host.switch.do("ip", "link", "add", host.name, *peer)
    host.switch.do("ip", "link", "set", host.name, "master", "bridge", "up")
    host.spaces.do("ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
    for interface in ("lo", INTERFACE):
        host.spaces.do("ip", "link", "set", interface, "up")


def _mounts(host: Host, state: Path, kept: Sequence[Path], nvme_mib: int) -> None:
    """A /tmp, shared memory and disk of its own; ``kept`` stay where they are although they lie in /tmp."""
    for source, target in (
        (state / "hosts", "hosts"),
        (state / "resolv.conf", "resolv.conf"),
        (host.files / "passwd", "passwd"),
    ):
        host.spaces.do("mount", "--bind", str(source), f"/etc/{target}")
    host.spaces.do("hostname", host.name)
    host.spaces.do("mount", "-t", "tmpfs", "-o", "mode=1777", "shm", "/dev/shm")
    host.spaces.do("mount", "-t", "tmpfs", "-o", "mode=0755", "run", "/run")
    host.spaces.do("mkdir", "/run/sshd")
    host.spaces.do("mount", "-t", "tmpfs", "mnt", "/mnt")
    host.spaces.do("mkdir", str(NVME), str(HOOKS))
    host.spaces.do("mount", "-t", "tmpfs", "-o", f"size={nvme_mib}m", "nvme", str(NVME))
    temporary = Path("/mnt/tmp")
    host.spaces.do("mkdir", str(temporary))
    host.spaces.do("mount", "-t", "tmpfs", "-o", "mode=1777", "tmp", str(temporary))
    for path in {path.resolve() for path in kept if path.resolve().is_relative_to("/tmp")}:
        inside = temporary / path.relative_to("/tmp")
        host.spaces.do("mkdir", "-p", str(inside))
        host.spaces.do("mount", "--bind", str(path), str(inside))
    host.spaces.do("mount", "--move", str(temporary), "/tmp")


def _pid_space(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _pid_inside(pid: int) -> str | None:
    """The number that a process has in its own namespace; None if it has just ended."""
    try:
        (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return line.split()[-1]
