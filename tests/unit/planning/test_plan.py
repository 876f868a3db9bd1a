"""The plan: verdicts, capacity, JSON, and that no configuration makes it fail."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config.enums import (
    DataSource,
    Family,
    LrSchedule,
    OffloadDevice,
    PipelineSchedule,
    Precision,
    RecomputePolicy,
)
from orchestrator.config.schema import ClusterConfig
from orchestrator.deepspeed_config.compile import compile_config
from orchestrator.findings import Severity, error, info, warning
from orchestrator.planning.cluster_spec import Host
from tests.unit.planning.configurations import changed, cpu_cluster, errors_of, gpu_cluster, plan_of, preset, run_config

LARGE = {"model__num_hidden_layers": 200, "model__hidden_size": 8192, "model__intermediate_size": 28672}


def finding_of(plan, rule):
    (finding,) = [finding for finding in plan.findings if finding.rule == rule]
    return finding


class TestVerdict:
    def test_a_sound_run_is_feasible(self):
        plan = plan_of(run_config())
        assert plan.verdict == "feasible"
        assert plan.fits

    def test_warnings_do_not_refuse(self):
        plan = plan_of(run_config(lr_scheduler__warmup_steps=1000))
        assert [finding.severity for finding in plan.findings] == [Severity.warning]
        assert plan.fits

    def test_a_run_that_does_not_fit_is_infeasible(self):
        plan = plan_of(run_config(**LARGE))
        assert plan.verdict == "infeasible"
        assert not plan.fits

    def test_a_broken_rule_makes_it_invalid_even_if_it_does_not_fit_either(self):
        plan = plan_of(run_config(data__source=DataSource.text, cluster=gpu_cluster(device_memory_gib=3.0)))
        assert plan.verdict == "invalid"
        assert errors_of(plan) == {"data.path": "data-path", "cluster.device_memory_gib": "device-memory"}

    def test_findings_from_outside_count(self):
        plan = plan_of(run_config())
        assert plan.with_findings([info("a", "b", "c", "d")]).fits
        assert plan.with_findings([error("a", "b", "c", "d")]).verdict == "invalid"


class TestWhatCouldNotBeEstablished:
    def test_an_unknown_model_leaves_the_rest_checked(self):
        plan = plan_of(run_config(model__hidden_size=None, zero__stage=7, training__train_batch_size=3))
        assert plan.model is None
        assert plan.memory is None
        assert {"model.hidden_size", "zero.stage", "training.train_batch_size"} <= set(errors_of(plan))

    def test_an_unreadable_hostfile_leaves_the_rest_checked(self):
        broken = error("hostfile", "cluster.hostfile", "no such file", "correct the path")
        plan = plan_of(run_config(data__source=DataSource.text), earlier_findings=[broken])
        assert plan.cluster is None
        assert plan.layout is None
        assert plan.verdict == "invalid"
        assert errors_of(plan) == {"cluster.hostfile": "hostfile", "data.path": "data-path"}

    def test_a_remark_about_the_hostfile_does_not_stop_the_plan(self):
        remark = warning("hostfile", "cluster.hostfile", "a comment", "nothing")
        plan = plan_of(run_config(), hosts=[Host(name="a", slots=8)], earlier_findings=[remark])
        assert plan.fits
        assert plan.findings == (remark,)

    def test_an_illegal_layout_is_not_estimated(self):
        plan = plan_of(run_config(parallelism__pipeline_parallel_size=2, zero__stage=3))
        assert plan.memory is None
        assert plan.layout is not None


class TestCapacity:
    def test_a_device_that_is_too_small(self):
        finding = finding_of(plan_of(run_config(**LARGE)), "device-memory")
        assert finding.field == "cluster.device_memory_gib"
        for piece in (
            "each of ranks 0-7 needs",
            "more than the 79.14 GiB",
            "79.14 GiB",
            "GPU-80GB",
            "reduction phase: gradients",
        ):
            assert piece in finding.message
        for remedy in ("activation_checkpointing.policy=full", "zero.stage=3", "offload.optimizer_device=cpu", "cluster.hosts"):
            assert remedy in finding.fix

    def test_the_message_says_by_how_much(self):
        plan = plan_of(run_config(cluster=gpu_cluster(device_memory_gib=4.0)))
        needed = plan.memory.device[0].device_bytes / 2**30
        assert f"{needed:.2f} GiB, {needed - 4.0:.2f} GiB more than the 4.00 GiB" in finding_of(plan, "device-memory").message

    def test_the_worst_stage_is_named(self):
        plan = plan_of(run_config(**LARGE, parallelism__pipeline_parallel_size=4))
        finding = finding_of(plan, "device-memory")
        worst = max(plan.memory.device, key=lambda entry: entry.device_bytes)
        assert f"each rank of stage {worst.stage} ({worst.ranks[0]}-{worst.ranks[-1]}) needs" in finding.message
        assert "3 more of the 4 stages" in finding.message

    def test_an_estimate_inside_the_margin_is_flagged_and_one_above_the_capacity_refused(self):
        config = run_config(cluster=gpu_cluster(device_memory_gib=12.0))
        needed = plan_of(config).memory.device[0].device_bytes / 2**30
        roomy, narrow, short = (
            plan_of(changed(config, cluster__device_memory_gib=needed * share)) for share in (1.06, 1.04, 0.999)
        )
        assert roomy.findings == ()
        assert narrow.fits and narrow.fits_narrowly and narrow.verdict == "feasible"
        finding = finding_of(narrow, "device-memory")
        assert finding.severity is Severity.warning
        assert "(3.8%) free, less than planner.memory_margin=0.05" in finding.message
        assert short.verdict == "infeasible"
        assert finding_of(short, "device-memory").severity is Severity.error

    def test_without_a_margin_nothing_is_flagged(self):
        config = run_config(cluster=gpu_cluster(device_memory_gib=12.0))
        needed = plan_of(config).memory.device[0].device_bytes / 2**30
        assert plan_of(changed(config, cluster__device_memory_gib=needed * 1.001, planner__memory_margin=0.0)).findings == ()

    def test_a_host_and_a_disk_inside_the_margin_are_flagged(self):
        states = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.nvme, "offload__nvme_path": "/nvme"}
        config = run_config(**states, cluster=gpu_cluster(nvme_gib=1000.0))
        memory = plan_of(config).memory
        host, disk = memory.host[0].peak_bytes / 2**30, memory.nvme[0].bytes / 2**30
        plan = plan_of(changed(config, cluster__host_memory_gib=host * 1.01, cluster__nvme_gib=disk * 1.01))
        assert plan.fits_narrowly
        assert {finding.rule: finding.severity for finding in plan.findings} == {
            "host-memory": Severity.warning,
            "nvme-capacity": Severity.warning,
        }

    def test_a_host_that_is_too_small(self):
        offload = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.cpu}
        plan = plan_of(run_config(**LARGE, **offload, cluster=gpu_cluster(hosts=4, host_memory_gib=900.0)))
        finding = finding_of(plan, "host-memory")
        assert plan.verdict == "infeasible"
        assert finding.field == "cluster.host_memory_gib"
        assert "host-1" in finding.message
        assert "3 more of the 4 hosts" in finding.message
        assert "offload.pin_memory=false" in finding.fix

    def test_a_cpu_is_refused_once_and_for_its_host(self):
        plan = plan_of(run_config(**LARGE, cluster=cpu_cluster()))
        assert errors_of(plan) == {"cluster.host_memory_gib": "host-memory"}

    def test_a_disk_that_is_too_small_or_unknown(self):
        nvme = {"zero__stage": 3, "offload__optimizer_device": OffloadDevice.nvme, "offload__nvme_path": "/disk"}
        plan = plan_of(run_config(**nvme, cluster=gpu_cluster(nvme_gib=1.0)))
        assert errors_of(plan) == {"cluster.nvme_gib": "nvme-capacity"}
        assert plan.verdict == "infeasible"
        unknown = plan_of(run_config(**nvme))
        assert unknown.fits
        assert finding_of(unknown, "nvme-unknown").severity is Severity.warning


class TestFrozenStages:
    def test_a_stage_that_trains_nothing_is_refused(self):
        frozen = ["embed_tokens", r"layers\.[0-7]\."]
        plan = plan_of(run_config(training__freeze=frozen, parallelism__pipeline_parallel_size=2))
        assert errors_of(plan) == {"training.freeze": "freeze-stage"}
        assert "stage 0" in finding_of(plan, "freeze-stage").message
        assert plan.verdict == "invalid"
        assert plan_of(run_config(training__freeze=frozen)).fits

    def test_with_dual_pipe_v_the_way_back_counts(self):
        frozen = [r"layers\.[4-7]\."]
        dual = {"parallelism__pipeline_parallel_size": 2, "parallelism__schedule": PipelineSchedule.dual_pipe_v}
        assert plan_of(run_config(training__freeze=frozen, **dual)).fits

    def test_with_dual_pipe_v_the_first_stage_still_needs_a_gradient(self):
        frozen = ["embed_tokens", r"layers\.[0-3]\."]
        dual = {"parallelism__pipeline_parallel_size": 2, "parallelism__schedule": PipelineSchedule.dual_pipe_v}
        assert errors_of(plan_of(run_config(training__freeze=frozen, **dual))) == {"training.freeze": "freeze-stage"}


class TestJson:
    def test_has_the_promised_shape(self):
        plan = plan_of(run_config(parallelism__pipeline_parallel_size=2, training__gradient_accumulation_steps=8))
        value = json.loads(json.dumps(plan.to_dict()))
        assert list(value) == ["verdict", "findings", "layout", "partition", "memory", "time", "time_unknown", "data"]
        assert value["time"] is None
        assert value["time_unknown"].startswith("not known of GPU-80GB: cluster.bf16_tflops")
        assert set(value["layout"]) == {
            "world_size",
            "data_parallel_size",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        }
        assert set(value["memory"]) >= {"device", "host", "nvme"}
        device, host, nvme = (value["memory"][part][0] for part in ("device", "host", "nvme"))
        levels = {"allocated_bytes", "reserved_bytes", "device_bytes", "capacity_bytes"}
        assert set(device) >= {"stage", "ranks", "components"} | levels
        assert set(host) >= {"host", "start_bytes", "step_bytes", "save_bytes", "capacity_bytes", "components"}
        assert set(nvme) == {"host", "bytes", "capacity_bytes"}
        assert [rank for entry in value["memory"]["device"] for rank in entry["ranks"]] == list(range(8))
        assert all(isinstance(size, int) for size in [*device["components"].values(), *host["components"].values()])

    def test_the_partition_numbers_every_layer(self):
        value = plan_of(run_config(parallelism__pipeline_parallel_size=4)).to_dict()["partition"]
        assert value["num_layers"] == len(value["layers"]) == 19
        assert value["layers"][:2] == ["TokenEmbedding", "LlamaDecoderLayer"]
        assert value["layers"][-2:] == ["FinalNorm", "OutputHead"]
        assert value["boundaries"] == [0, 5, 9, 13, 19]
        assert [(stage["pipe"], stage["layers"]) for stage in value["stages"]] == [
            (0, [0, 4]),
            (1, [5, 8]),
            (2, [9, 12]),
            (3, [13, 18]),
        ]
        assert sum(stage["parameters"] for stage in value["stages"]) == plan_of(run_config()).model.num_parameters

    def test_dual_pipe_v_has_two_stages_for_each_coordinate(self):
        plan = plan_of(run_config(parallelism__pipeline_parallel_size=2, parallelism__schedule=PipelineSchedule.dual_pipe_v))
        value = plan.to_dict()
        assert value["partition"]["boundaries"] == [0, 5, 9, 13, 19]
        assert [stage["pipe"] for stage in value["partition"]["stages"]] == [0, 1, 1, 0]
        assert len(value["memory"]["device"]) == 2

    def test_findings_carry_everything(self):
        value = plan_of(run_config(zero__stage=9, training__train_batch_size=7)).to_dict()
        assert value["verdict"] == "invalid"
        assert value["layout"] is None
        assert all(set(finding) == {"rule", "severity", "field", "message", "fix"} for finding in value["findings"])
        assert all(finding["fix"] for finding in value["findings"])


@pytest.mark.parametrize("name", ["dgx_a100_80", "v100_32", "local_cpu"])
def test_presets_can_be_planned(name):
    config = run_config(cluster=preset("cluster", name, ClusterConfig))
    if name == "v100_32":
        assert errors_of(plan_of(config)) == {"precision.dtype": "device-precision"}
        config = changed(config, precision__dtype=Precision.fp16)
    assert plan_of(config).fits


ODD_INTS = st.sampled_from([-(10**18), -1, 0, 1, 2, 3, 4, 7, 8, 64, 1000, 4096, 10**6, 10**9 + 7, 10**18])
ODD_FLOATS = st.sampled_from([-1.0, 0.0, 1e-12, 0.05, 0.5, 1.0, 2.0, 80.0, 1e18, float("nan"), float("inf"), float("-inf")])
ENUMS = (
    Family,
    OffloadDevice,
    Precision,
    RecomputePolicy,
    PipelineSchedule,
    LrSchedule,
    DataSource,
)


def strategy_of(annotation: str) -> st.SearchStrategy[Any] | None:
    """Values of a field's type, the odd ones first; ``None`` for types that do not matter to a plan."""
    optional = st.none() if "None" in annotation else st.nothing()
    base = annotation.removesuffix(" | None")
    for enum in ENUMS:
        if base == enum.__name__:
            return st.one_of(optional, st.sampled_from(list(enum)))
    known: dict[str, st.SearchStrategy[Any]] = {
        "int": ODD_INTS,
        "float": ODD_FLOATS,
        "bool": st.booleans(),
        "list[float]": st.lists(ODD_FLOATS, max_size=3),
        "list[Precision]": st.lists(st.sampled_from(list(Precision)), max_size=3),
    }
    return st.one_of(optional, known[base]) if base in known else None


def all_fields() -> dict[str, st.SearchStrategy[Any]]:
    """Every option of every group that a plan could look at."""
    config = run_config()
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for group in fields(config):
        section = getattr(config, group.name)
        if not hasattr(section, "__dataclass_fields__"):
            continue
        for option in fields(section):
            strategy = strategy_of(str(option.type))
            if strategy is not None:
                strategies[f"{group.name}__{option.name}"] = strategy
    return strategies


FIELDS = all_fields() | {
    "parallelism__partition_method": st.sampled_from(
        ["uniform", "parameters", "balanced", "explicit", "type:decoder", "type:", "type:(", "type:nothing", "best", ""]
    ),
    "parallelism__partition_boundaries": st.one_of(
        st.none(), st.lists(ODD_INTS, max_size=5), st.sampled_from([[0, 19], [0, 5, 19], [0, 1, 18, 19], [0, 4, 8, 12, 19]])
    ),
    "training__freeze": st.lists(st.sampled_from(["norm", "embed", "(", "", "layers.1[0-5]", "nothing"]), max_size=2),
}


@st.composite
def random_configs(draw):
    """A sound configuration in which a few options, of any kind, have any values of their types."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=8, unique=True))
    base = run_config(cluster=draw(st.sampled_from([gpu_cluster(), cpu_cluster(), gpu_cluster(hosts=3)])))
    return changed(base, **{name: draw(FIELDS[name]) for name in names})


HOSTS = st.one_of(
    st.none(),
    st.lists(st.builds(Host, name=st.sampled_from(["a", "b", "c"]), slots=st.integers(-1, 16)), max_size=4),
)


@settings(max_examples=300)
@given(random_configs(), HOSTS)
def test_no_configuration_makes_the_plan_fail(config, hosts):
    plan = plan_of(config, hosts=hosts)
    assert json.loads(json.dumps(plan.to_dict()))["verdict"] == plan.verdict
    assert all(finding.message and finding.fix and finding.field for finding in plan.findings)
    if plan.fits:
        assert plan.memory is not None
        assert all(
            0 < entry.device_bytes <= entry.capacity_bytes or config.cluster.device_memory_gib is None
            for entry in plan.memory.device
        )
        compiled = compile_config(
            config,
            plan.settings,
            train_batch_size=plan.layout.train_batch_size,
            train_micro_batch_size_per_gpu=plan.layout.train_micro_batch_size_per_gpu,
            gradient_accumulation_steps=plan.layout.gradient_accumulation_steps,
        )
        json.dumps(compiled, allow_nan=False)
