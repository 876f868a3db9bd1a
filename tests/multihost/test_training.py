"""The same training on one host and on two, over ssh and over pdsh, with secrets that nobody else may see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pytest

from tests.multihost.job import START_SECONDS, Job, start
from tests.multihost.rig import Rig
from tests.multihost.spy import Spy, holding

SECRETS = {name: token_hex(20) for name in ("HF_TOKEN", "WANDB_API_KEY")}
LAYOUT = ("experiment=smoke", "parallelism=tensor_2_pipeline_2", "training.train_batch_size=8", "checkpoint.save_at_end=false")


@dataclass(frozen=True)
class Trained:
    """A run to its end, and what was to be seen of it."""

    job: Job
    spy: Spy


@pytest.fixture(scope="module")
def on_one_host(rig: Rig) -> Job:
    job = start(rig.shared / "one", rig.hosts[:1], *LAYOUT, "training.gradient_accumulation_steps=null", slots=4)
    assert job.ends(START_SECONDS) == 0, job.printed
    return job


@pytest.fixture(scope="module", params=["ssh", "pdsh"])
def on_two_hosts(rig: Rig, request: pytest.FixtureRequest) -> Trained:
    words = (*LAYOUT, "training.gradient_accumulation_steps=null", f"launcher={request.param}")
    with Spy(rig.shared, list(SECRETS.values())) as spy:
        job = start(rig.shared / request.param, rig.hosts[:2], *words, slots=2, environment=SECRETS)
        assert job.ends(START_SECONDS) == 0, job.printed
    return Trained(job, spy)


def test_it_trains_to_the_same_losses(on_one_host: Job, on_two_hosts: Trained) -> None:
    assert len(on_one_host.losses()) == 5
    assert on_two_hosts.job.losses() == on_one_host.losses()


def test_each_host_has_its_ranks(on_two_hosts: Trained) -> None:
    (stages,) = {line for line in on_two_hosts.job.printed.splitlines() if "4 processes" in line}
    assert "2 pipeline stages x 1 data parallel x 2 tensor parallel" in stages


def test_nothing_is_left_of_it(on_two_hosts: Trained) -> None:
    assert not on_two_hosts.job.processes()


def test_secrets_reach_every_rank_and_nobody_else(on_two_hosts: Trained) -> None:
    assert on_two_hosts.spy.rounds > 20
    assert on_two_hosts.spy.ranks == {0, 1, 2, 3}
    assert not on_two_hosts.spy.found


def test_no_file_or_log_has_a_secret(rig: Rig, on_two_hosts: Trained) -> None:
    values = [value.encode() for value in SECRETS.values()]
    places = [rig.shared, *(host.home for host in rig.hosts)]
    places += [host.path(Path(inside)) for host in rig.hosts for inside in ("/tmp", "/mnt", "/dev/shm", "/run")]
    assert not [path for place in places for path in holding(place, values)]
    assert not any(value.decode() in on_two_hosts.job.printed for value in values)
