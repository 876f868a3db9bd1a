"""A real Slurm of two nodes on this machine: its own munge key, ports, state and spool; no service of the system is touched.

Debian's ``slurm-wlm`` runs several node daemons on one host. Without cgroups: processes are tracked by their parents.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path

import psutil

NODES = ("node1", "node2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
_SBIN = "/usr/sbin:/sbin"
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# a requeued job waits until its old credential is over
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=2
JobRequeue=1
ReturnToService=2
KillWait=20
MinJobAge=600
NodeName={nodes} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={node_ports} CPUs=2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """What of Slurm and munge is not installed here."""
    return [program for program in PROGRAMS if shutil.which(program, path=_path()) is None]


@dataclass(slots=True)
class SlurmCluster:
    """A running Slurm. ``environment`` is what its programs, and whatever calls them, need."""

    folder: Path
    environment: dict[str, str]
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *argv: str, timeout: float = 60, check: bool = True) -> str:
        """The output of a Slurm program."""
        ended = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
        )
        assert not check or ended.returncode == 0, f"{argv}: {ended.stdout}{ended.stderr}\n{self.logs()}"
        return ended.stdout

    def state_of(self, job_id: str) -> str:
        """A job's state as ``squeue`` calls it."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T").strip()

    def processes(self) -> list[psutil.Process]:
        """Living processes of jobs of this Slurm, wherever their parents have gone."""
        ours = self.environment["SLURM_CONF"]
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                variables = process.environ()
                in_job = variables.get("SLURM_CONF") == ours and "SLURM_JOB_ID" in variables
                if in_job and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def cancel_everything(self) -> None:
        """End every job, and wait until its processes have gone."""
        self.run("scancel", "--state=PENDING", f"--user={getuser()}", check=False)
        self.run("scancel", f"--user={getuser()}", check=False)
        self.wait_until_idle()

    def wait_until_idle(self, seconds: float = 60) -> None:
        """Until no job is there and every node is free."""
        deadline = time.monotonic() + seconds
        while self.run("squeue", "--noheader") or set(self.run("sinfo", "-hN", "--format=%T").split()) != {"idle"}:
            assert time.monotonic() < deadline, self.run("squeue") + self.run("sinfo") + self.logs()
            time.sleep(0.3)

    def logs(self) -> str:
        """The end of what the daemons said."""
        return "\n".join(f"{path.name}:\n" + path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are free."""
        own = ("--key-file=munge.key", "--seed-file=munge.seed", "--pid-file=munged.pid", "--log-file=munged.log")
        self._daemon(
            "munged",
            "--foreground",
            f"--socket={self.folder}/munge.socket",
            *(word.replace("=", f"={self.folder}/") for word in own),
        )
        deadline = time.monotonic() + 20
        while not (self.folder / "munge.socket").exists():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)
        self._daemon("slurmctld", "-D", "-i")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait_until_idle()

    def stop(self) -> None:
        """End all jobs and daemons."""
        try:
            self.cancel_everything()
        finally:
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            # node daemons first, munge last: they all talk through it
            for daemon in reversed(self._daemons):
                daemon.terminate()
                with suppress(subprocess.TimeoutExpired):
                    daemon.wait(timeout=10)
                daemon.kill()
                daemon.wait()

    def _daemon(self, *argv: str) -> None:
        # a session of its own: Ctrl-C at the tests must not end it before the jobs are cancelled
        with (self.folder / f"{argv[0]}.out").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    argv,
                    env=self.environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )


@contextmanager
def running_cluster() -> Iterator[SlurmCluster]:
    """A Slurm of two free nodes, gone with everything it ran at the end."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # a socket's path may have 107 characters
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    controller_port, *node_ports = _free_ports(1 + len(NODES))
    configuration = _CONFIGURATION.format(
        hostname=socket.gethostname().split(".")[0],
        user=getuser(),
        folder=folder,
        controller_port=controller_port,
        nodes=",".join(NODES),
        node_ports=",".join(map(str, node_ports)),
    )
    (folder / "slurm.conf").write_text(configuration)
    cluster = SlurmCluster(folder, {**_outside_of_jobs(), "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"


def _outside_of_jobs() -> dict[str, str]:
    """This environment without what a Slurm that runs the tests themselves has left in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH_", "SRUN_"))}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports
