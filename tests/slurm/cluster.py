"""A real Slurm on the hosts of ``tests/multihost/rig.py``: a login node with the controller, and two nodes that run jobs.

It is what Debian installs as ``slurm-wlm`` and ``munge``, configured in each host's own ``/etc/slurm`` and ``/run``; no
service of this machine is touched, and all of it ends with the hosts. Processes are tracked without cgroups.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.cli.command_line import Ended
from tests.multihost.rig import Host, Rig, build, eventually, why_not

ROOT = Path(__file__).parents[2]
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_NVME_MIB = (16, 16, 16)
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={login}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# a requeued job waits until its old credential is over
AuthInfo=socket=/run/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
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
NodeName={nodes} CPUs=2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """Why this machine cannot have a Slurm of its own; None where it can."""
    missing = [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"Slurm and munge are not installed (slurm-wlm munge): {', '.join(missing)}"
    return why_not()


class SlurmCluster:
    """A running Slurm, as its users have it on ``login``."""

    def __init__(self, rig: Rig) -> None:
        self.shared = rig.shared
        self.login, *self.nodes = rig.hosts
        self._folder = rig.shared / "slurm"
        for name in ("state", "spool"):
            (self._folder / name).mkdir(parents=True)
        names = ",".join(node.name for node in self.nodes)
        configuration = _CONFIGURATION.format(login=self.login.name, folder=self._folder, nodes=names)
        (self._folder / "slurm.conf").write_text(configuration)
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for host in rig.hosts:
            self._prepare(host)
        self._daemon(self.login, "slurmctld", "-D", "-i")
        for node in self.nodes:
            self._daemon(node, "slurmd", "-D")
        self.wait_until_idle()

    def run(self, *argv: str) -> str:
        """The output of a program on the login node, which must not fail."""
        ended = self.login.run(*argv)
        assert ended.code == 0, f"{argv}: {ended.everything}\n{self.logs()}"
        return ended.stdout

    def orchestrator(self, *words: str, cwd: Path, timeout: float = 300) -> Ended:
        """Run ``orchestrator WORDS`` on the login node."""
        ended = self.login.run(sys.executable, "-m", "orchestrator", *words, cwd=cwd, timeout=timeout)
        return Ended(ended.code, ended.stdout, ended.stderr)

    def state_of(self, job_id: str) -> str:
        """A job's state as ``squeue`` calls it."""
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T").strip()

    def processes(self) -> list[psutil.Process]:
        """What lives on the nodes besides their daemons."""
        return [process for node in self.nodes for process in node.processes()]

    def clear(self) -> None:
        """End every job, make every node fit for work, and end what was left."""
        for chosen in (("--state=PENDING",), ()):
            # a job that ends by itself meanwhile is no fault
            self.login.run("scancel", "--user=root", *chosen)
        for node in self.nodes:
            self.login.run("scontrol", "update", f"nodename={node.name}", "state=resume")
        self.wait_until_idle()
        for host in (self.login, *self.nodes):
            host.clear()

    def wait_until_idle(self) -> None:
        """Until no job is there and every node is free."""
        eventually(self._is_idle, within=120, what=f"Slurm is idle\n{self.logs()}")

    def logs(self) -> str:
        """The end of what the daemons said."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self._folder.glob("*.log")))

    def _is_idle(self) -> bool:
        nodes, jobs = self.login.run("sinfo", "--noheader", "--Node", "--format=%T"), self.login.run("squeue", "--noheader")
        # the controller may not answer yet
        return nodes.code == jobs.code == 0 and set(nodes.stdout.split()) == {"idle"} and not jobs.stdout

    def _prepare(self, host: Host) -> None:
        host.spaces.do("mount", "-t", "tmpfs", "slurm", "/etc/slurm")
        host.spaces.do("cp", str(self._folder / "slurm.conf"), "/etc/slurm/slurm.conf")
        places = {"key": self._folder / "munge.key", "socket": "/run/munge.socket", "pid": "/run/munged.pid"}
        words = [f"--{name}-file={path}" for name, path in places.items() if name != "socket"]
        more = (f"--socket={places['socket']}", "--seed-file=/run/munge.seed", "--log-file=/run/munged.log")
        self._daemon(host, "munged", "--foreground", *words, *more)
        eventually(host.path(Path("/run/munge.socket")).exists, within=60, what=f"munge answers on {host.name}")

    def _daemon(self, host: Host, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=_PATH)
        assert path is not None
        log = self._folder / f"{program}.{host.name}.out"
        started = host.start(path, *arguments, cwd=self._folder, log=log)
        host.own.add(started.process.pid)


@contextmanager
def running_cluster(state: Path, shared: Path) -> Iterator[SlurmCluster]:
    """A Slurm of two free nodes, gone with everything it ran at the end."""
    rig = build(state, shared, _NVME_MIB, root=ROOT)
    try:
        yield SlurmCluster(rig)
    finally:
        rig.close()
