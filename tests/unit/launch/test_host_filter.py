"""cluster.include and cluster.exclude: which devices are left, and what is refused."""

from __future__ import annotations

import pytest

from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.launch.command import hostfile_text, launch_spec
from orchestrator.launch.host_filter import filter_text, filtered_hosts
from orchestrator.planning.cluster_spec import ClusterSpec, Host
from tests.unit.planning.configurations import gpu_cluster, plan_of, run_config

HOSTS = (Host(name="work1", slots=2), Host(name="work2", slots=4))


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        (None, None, {"work1": (0, 1), "work2": (0, 1, 2, 3)}),
        ("work2", None, {"work2": (0, 1, 2, 3)}),
        ("work2:1,3", None, {"work2": (1, 3)}),
        ("work2:3,1", None, {"work2": (1, 3)}),
        ("work2:0@work1", None, {"work1": (0, 1), "work2": (0,)}),
        (None, "work2", {"work1": (0, 1)}),
        (None, "work2:0", {"work1": (0, 1), "work2": (1, 2, 3)}),
        (None, "work1:0,1", {"work2": (0, 1, 2, 3)}),
    ],
)
def test_devices_that_are_left(include: str | None, exclude: str | None, left: dict[str, tuple[int, ...]]) -> None:
    hosts, findings = filtered_hosts(HOSTS, include=include, exclude=exclude)
    assert findings == []
    assert {host.name: host.device_numbers for host in hosts} == left
    assert all(host.slots == len(host.device_numbers) for host in hosts)


@pytest.mark.parametrize(
    ("include", "exclude", "rule", "field", "says"),
    [
        ("work1", "work2", "host-filter-both", "cluster.include", "'work2'"),
        ("work1:2,3", None, "host-filter-slot", "cluster.include", "slots 0 to 1, and not 2, 3"),
        (None, "work2:4", "host-filter-slot", "cluster.exclude", "not 4"),
        ("work3", None, "host-filter-host", "cluster.include", "'work3'"),
        ("work1:0@work1:1", None, "host-filter-host", "cluster.include", "twice"),
        ("work1,work2", None, "host-filter-syntax", "cluster.include", "not by a comma"),
        ("work1:0,work2:0", None, "host-filter-syntax", "cluster.include", "two colons"),
        ("work2:0-3", None, "host-filter-syntax", "cluster.include", "ranges"),
        ("work2:0,", None, "host-filter-syntax", "cluster.include", "slot is missing"),
        ("work2:", None, "host-filter-syntax", "cluster.include", "slot is missing"),
        ("work2:GPU-1f", None, "host-filter-syntax", "cluster.include", "no names of devices"),
        ("work1@", None, "host-filter-syntax", "cluster.include", "host is missing"),
        ("work1 @work2", None, "host-filter-syntax", "cluster.include", "space"),
        (None, "work1@work2", "host-filter-empty", "cluster.exclude", "none of the devices"),
        (None, "work1:0,1@work2:0,1,2,3", "host-filter-empty", "cluster.exclude", "none of the devices"),
    ],
)
def test_a_bad_filter_is_refused(include: str | None, exclude: str | None, rule: str, field: str, says: str) -> None:
    hosts, findings = filtered_hosts(HOSTS, include=include, exclude=exclude)
    assert hosts == ()
    assert [(finding.rule, finding.field) for finding in findings] == [(rule, field)]
    assert says in findings[0].message
    assert findings[0].fix


def test_every_problem_of_a_filter_is_reported() -> None:
    _, findings = filtered_hosts(HOSTS, include="work1:5@wrok2:0@work2:1-3", exclude=None)
    assert [finding.rule for finding in findings] == ["host-filter-slot", "host-filter-host", "host-filter-syntax"]
    assert "work2" in findings[1].fix


def test_slots_can_be_counted_up_when_the_hostfile_says_too_few() -> None:
    _, findings = filtered_hosts((Host(name="work1", slots=2),), include="work1:2,3", exclude=None)
    assert "slots=4" in findings[0].fix


def cluster_of(hosts: tuple[Host, ...]) -> ClusterSpec:
    plan = plan_of(run_config(cluster=gpu_cluster()), hosts=hosts)
    assert plan.cluster is not None
    return plan.cluster


def test_deepspeed_is_handed_the_devices(tmp_path) -> None:
    hosts, _ = filtered_hosts(HOSTS, include="work1@work2:1,3", exclude=None)
    cluster = cluster_of(hosts)
    assert cluster.num_devices == 4
    assert hostfile_text(cluster) == "work1 slots=2\nwork2 slots=4\n"
    spec = launch_spec(run_config(), cluster, tmp_path, working_directory=tmp_path)
    assert "--include=work1:0,1@work2:1,3" in spec.launcher


def test_without_a_filter_nothing_is_handed_on(tmp_path) -> None:
    assert filter_text(HOSTS) is None
    spec = launch_spec(run_config(), cluster_of(HOSTS), tmp_path, working_directory=tmp_path)
    assert not [word for word in spec.launcher if "include" in word]


def test_devices_of_this_machine_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hosts, _ = filtered_hosts((Host(name="localhost", slots=8),), include="localhost:2,5", exclude=None)
    spec = launch_spec(run_config(), cluster_of(hosts), tmp_path, working_directory=tmp_path)
    assert spec.launcher[spec.launcher.index("--include") + 1] == "localhost:2,5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4,3,2")
    spec = launch_spec(run_config(), cluster_of(hosts), tmp_path, working_directory=tmp_path)
    assert spec.launcher[spec.launcher.index("--include") + 1] == "localhost:5,2"


def test_a_plan_is_made_of_what_the_filter_leaves(tmp_path) -> None:
    (tmp_path / "hostfile").write_text("work1 slots=2\nwork2 slots=4\n")
    words = ["cluster=dgx_h100", "training=default", "data=synthetic", f"cluster.hostfile={tmp_path / 'hostfile'}"]
    plan = plan_run(load_config([*words, "cluster.exclude='work2:0,1'"]))
    assert plan.fits, plan.findings
    assert plan.layout.world_size == 4
    assert [host.device_numbers for host in plan.cluster.hosts] == [(0, 1), (2, 3)]
    unfiltered = plan_run(load_config(words))
    assert unfiltered.layout.world_size == 6
    assert [finding.rule for finding in unfiltered.findings if finding.field == "cluster.hostfile"] == ["mixed-slots"]


def test_hosts_that_are_only_counted_are_filtered_by_their_names() -> None:
    words = ["cluster=dgx_h100", "training=default", "data=synthetic", "cluster.hosts=2"]
    assert plan_run(load_config([*words, "cluster.include='host-1@host-2:0'"])).layout.world_size == 9
    plan = plan_run(load_config([*words, "cluster.include=node-9"]))
    assert plan.verdict == "invalid"
    assert "host-filter-host" in {finding.rule for finding in plan.findings}
