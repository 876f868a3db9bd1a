"""Runs as Slurm jobs on two nodes: trained, cancelled, refused, and put back into the queue."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Ended
from tests.multihost.rig import INTERFACE, Started, eventually, left_on
from tests.slurm.cluster import SlurmCluster

START_SECONDS = 240.0
"""For the ranks to start on a machine that is busy otherwise."""
WORDS = (
    "experiment=smoke",
    "launcher=slurm",
    "cluster.hosts=2",
    "cluster.devices_per_host=1",
    f"launcher.environment.GLOO_SOCKET_IFNAME={INTERFACE}",
    "run_dir=run",
    "output=json",
)
ENDLESS = (
    "training.max_steps=1000000",
    "checkpoint.save_at_end=false",
    "training.evaluate_sequences=8",
    "launcher.detach=true",
)
OPTIONS = "launcher.slurm.options"
HELD = f"{OPTIONS}.hold='true'"


@dataclass
class Run:
    """A run of a job, as it is seen from the login node."""

    slurm: SlurmCluster
    folder: Path
    job_id: str = ""

    def launch(self, *words: str) -> Ended:
        return self.slurm.orchestrator("launch", *WORDS, *words, cwd=self.folder)

    def submit(self, *words: str) -> None:
        """Launch a run that never ends, and leave it to itself."""
        ended = self.launch(*ENDLESS, *words)
        assert ended.code == 0, ended.everything
        assert ended.json["status"] == "submitted"
        self.job_id = ended.json["job_id"]

    def submit_by_hand(self, *words: str) -> None:
        """Have the script written for such a run, and submit it without us."""
        ended = self.launch(*ENDLESS, *words, "dry_run=true")
        assert ended.code == 0, ended.everything
        self.job_id = self.slurm.run("sbatch", "--parsable", ended.json["script"]).strip()

    def follow(self, *words: str) -> Started:
        """Launch and follow a job in another process, until it waits for something."""
        argv = [sys.executable, "-m", "orchestrator", "launch", *WORDS, *words, "output=text"]
        follower = self.slurm.login.start(*argv, cwd=self.folder, log=self.folder / "printed.log")
        eventually(lambda: "PENDING (" in follower.printed, within=120, what="it is said why the job waits")
        (self.job_id,) = re.findall(r"job (\d+) is submitted", follower.printed)
        return follower

    def orchestrator(self, verb: str) -> Ended:
        return self.slurm.orchestrator(verb, "run", "output=json", cwd=self.folder)

    @property
    def state(self) -> str:
        return self.slurm.state_of(self.job_id)

    @property
    def output(self) -> str:
        path = self.folder / "run" / f"slurm-{self.job_id}.out"
        return path.read_text() if path.exists() else "(no output)"

    def steps(self, attempt: int) -> list[int]:
        """The numbers of the steps that an attempt has trained."""
        path = self.folder / "run" / "attempts" / str(attempt) / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [entry["step"] for entry in map(json.loads, lines) if entry["kind"] == "train"]

    def outcome(self, attempt: int) -> dict[str, Any]:
        """How an attempt ended, as its controller wrote it."""
        value: dict[str, Any] = json.loads((self.folder / "run" / "attempts" / str(attempt) / "outcome.json").read_text())
        return value

    def trains(self, attempt: int = 1) -> None:
        """Wait until an attempt has taken some steps."""

        def there() -> bool:
            over = self.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
            assert not over, self.output
            return len(self.steps(attempt)) >= 3

        eventually(there, within=START_SECONDS, what=f"attempt {attempt} trains\n{self.output}")

    def update(self, setting: str) -> None:
        self.slurm.run("scontrol", "update", f"jobid={self.job_id}", setting)

    def is_gone(self) -> bool:
        return self.state not in ("RUNNING", "COMPLETING") and not self.slurm.processes()


@pytest.fixture
def run(slurm: SlurmCluster, request: pytest.FixtureRequest) -> Run:
    folder = slurm.shared / str(request.node.name)
    folder.mkdir()
    return Run(slurm, folder)


def test_a_job_trains_on_both_nodes_and_is_followed_to_its_end(run: Run) -> None:
    ended = run.launch()
    assert ended.code == 0, ended.everything
    assert ended.json["status"] == "completed"
    assert ended.json["result"]["steps"] == 5
    told = [f"job {ended.json['job_id']} is submitted", "RUNNING on host[1-2]", "step 1/5", "step 5/5", "COMPLETED"]
    assert [line for line in told if line in ended.stderr] == told
    assert sorted(told, key=ended.stderr.index) == told
    assert not left_on(run.slurm.nodes)


def test_before_its_time_limit_a_job_saves_and_goes_back_into_the_queue_until_it_is_cancelled(run: Run) -> None:
    run.submit_by_hand("launcher.slurm.save_seconds_before_limit=120", f"{OPTIONS}.time=60")
    run.trains()
    minutes = int(run.slurm.run("squeue", "-h", f"--jobs={run.job_id}", "--format=%M").split(":")[-2])
    run.update(f"timelimit={minutes + 2}")
    eventually(lambda: run.state == "PENDING", within=120, what=f"the job waits again\n{run.output}")
    run.update("timelimit=60")
    run.trains(attempt=2)
    last = run.steps(attempt=1)[-1]
    assert run.steps(attempt=2)[:2] == [last + 1, last + 2]
    assert f"job {run.job_id} goes back into the queue" in run.output
    assert run.outcome(attempt=1)["stopped_by"] == "time_limit"
    run.slurm.run("scancel", run.job_id)
    eventually(run.is_gone, within=45, what=f"nothing of the job is left\n{run.output}")
    assert run.state == "CANCELLED"
    assert run.outcome(attempt=2)["status"] == "interrupted"


def test_a_job_whose_node_fails_starts_over_and_is_stopped_with_a_checkpoint(run: Run) -> None:
    run.submit()
    run.trains()
    run.slurm.run("scontrol", "update", "nodename=host2", "state=down", "reason=test")
    eventually(lambda: run.state == "PENDING", within=120, what=f"the job waits again\n{run.output}")
    run.trains(attempt=2)
    assert run.steps(attempt=2)[0] == 1
    stopped = run.orchestrator("stop")
    assert stopped.code == 0, stopped.everything
    assert stopped.json["saved"].endswith(f"global_step{run.steps(attempt=2)[-1]}")
    eventually(run.is_gone, within=45, what=f"nothing of the job is left\n{run.output}")
    assert run.state == "FAILED", "a run that was stopped is not requeued, and was not completed"


def test_what_the_allocation_refuses_is_seen_by_who_follows(run: Run) -> None:
    """The data is there when the job is submitted, and gone when it starts."""
    text = run.folder / "text.txt"
    text.write_text("words\n" * 1000)
    follower = run.follow("data=text", f"data.path={text}", "data.tokenizer_vocab_size=512", "model.vocab_size=512", HELD)
    text.unlink()
    run.slurm.run("scontrol", "release", run.job_id)
    assert follower.wait(START_SECONDS) == 3, follower.printed
    assert f"{text} does not exist" in follower.printed
    assert f"job {run.job_id}: host not ready" in follower.printed


def test_who_stops_following_leaves_the_job_alone_and_can_cancel_it(run: Run) -> None:
    follower = run.follow(HELD)
    follower.signal(signal.SIGINT)
    assert follower.wait(60) == 130, follower.printed
    assert f"job {run.job_id} goes on by itself" in follower.printed
    assert run.state == "PENDING"
    status = run.orchestrator("status")
    assert (status.code, status.json["state"], status.json["job_id"]) == (0, "PENDING", run.job_id)
    assert "JobHeldUser" in status.json["reason"]
    stopped = run.orchestrator("stop")
    assert (stopped.code, stopped.json["state"]) == (0, "CANCELLED"), stopped.everything
    assert run.state == "CANCELLED"


def test_inside_of_an_allocation_its_hosts_are_the_runs(run: Run) -> None:
    words = ("preflight", *WORDS, "cluster.hosts=1", "checkpoint=none")
    allocated = ("salloc", "--nodes=2", "--ntasks-per-node=1", sys.executable, "-m", "orchestrator")
    inside = run.slurm.login.run(*allocated, *words, cwd=run.folder, timeout=START_SECONDS)
    assert inside.code == 0, inside.everything
    assert list(json.loads(inside.stdout)["hosts"]) == [node.name for node in run.slurm.nodes]
    outside = run.slurm.orchestrator(*words, cwd=run.folder)
    assert outside.code == 2
    assert "salloc" in outside.json["findings"][0]["fix"]


def test_a_second_job_of_one_run_is_refused(run: Run) -> None:
    run.submit(HELD)
    again = run.launch()
    assert again.code == 2
    (finding,) = again.json["findings"]
    assert finding["field"] == "run_dir"
    assert f"job {run.job_id}" in finding["message"]


@pytest.mark.parametrize(
    ("option", "said"), [("partition=nowhere", "partition"), ("no-such-option=1", "no-such-option"), ("nodelist=host9", "node")]
)
def test_what_sbatch_refuses_is_told_in_its_words(run: Run, option: str, said: str) -> None:
    ended = run.launch(f"{OPTIONS}.{option}")
    assert ended.code == 2, ended.everything
    (finding,) = ended.json["findings"]
    assert finding["field"] == OPTIONS
    assert said in finding["message"]


def test_a_dry_run_shows_the_script_and_submits_nothing(run: Run) -> None:
    ended = run.launch("dry_run=true", f"{OPTIONS}.comment='a # b'")
    assert ended.code == 0, ended.everything
    script = Path(ended.json["script"])
    assert script.read_text() == ended.json["text"]
    assert not run.slurm.run("squeue", "--noheader")
    job = run.slurm.run("sbatch", "--parsable", "--hold", str(script)).strip()
    shown = run.slurm.run("scontrol", "--oneliner", "show", "job", job)
    assert re.search(r"NumNodes=2\b", shown)
    assert "Comment=a # b" in shown
