"""Where DeepSpeed keeps what: a pairwise cover of stages, offload, layouts and formats, counted in its engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.commands.exact import contents_on_cpu
from orchestrator.config.enums import Accelerator, OffloadDevice
from orchestrator.deepspeed_config.settings import OptimizerWrapper
from orchestrator.planning.memory.host import host_states, pinned_bytes
from orchestrator.planning.memory.shape import rank_shape
from orchestrator.planning.memory.states import mixes_gradient_formats
from orchestrator.planning.plan import closed_forms_of
from orchestrator.run_dir import start_run
from orchestrator.units import DTYPE_BYTES
from tests.unit.planning.memory.engine_cases import illegal_pairs, optimizer_cases, pairwise_cover

COUNTER, ROOT = Path(__file__).with_name("count_cover.py"), Path(__file__).parents[4]
COVER, OPTIMIZERS = pairwise_cover(), optimizer_cases()
NAMES = [case.name for case in COVER]
REFUSED = {
    *((f"stage {stage}", offload) for stage in (0, 1, 2) for offload in ("all on cpu", "optimizer on nvme", "all on nvme")),
    ("stage 0", "optimizer on cpu"),
    ("stage 0", "fp16"),
    ("stage 0", "bf16 in fp32"),
    *((f"stage {stage}", layout) for stage in (2, 3) for layout in ("dp 2, pp 2", "tp 2, pp 2")),
    *(
        (offload, layout)
        for offload in ("all on cpu", "optimizer on nvme", "all on nvme")
        for layout in ("dp 2, pp 2", "tp 2, pp 2")
    ),
}
"""Parameters and disks are stage 3's, which has no pipeline; stage 0 offloads nothing and takes no second format."""


def test_the_planner_refuses_what_deepspeed_cannot():
    assert illegal_pairs() == REFUSED


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    root = tmp_path_factory.mktemp("cover")
    requests = []
    for position, case in enumerate([*COVER, *OPTIMIZERS]):
        scratch = root / str(position)
        scratch.mkdir()
        attempt = start_run(scratch / "run", contents_on_cpu(case.config, case.plan, scratch))
        requests.append([str(attempt.path), closed_form(case.name).rank])
    ended = subprocess.run(
        [sys.executable, str(COUNTER), json.dumps(requests)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)},
        cwd=root,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("COUNTED ")]
    return dict(zip([case.name for case in (*COVER, *OPTIMIZERS)], json.loads(line.removeprefix("COUNTED ")), strict=True))


def case_of(name):
    return next(case for case in (*COVER, *OPTIMIZERS) if case.name == name)


def closed_form(name):
    """Of a pipeline the last stage, which holds the head and no embedding."""
    return closed_forms_of(case_of(name).config, case_of(name).plan)[-1]


def components_of(counted, name):
    assert "failed" not in counted[name], counted[name]["failed"]
    return counted[name]["components"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("component", ["parameters", "optimizer_states", "reduce_buckets", "swap_buffers", "nvme"])
def test_a_component_is_what_the_engine_holds(counted, name, component):
    found = components_of(counted, name).get(component, 0)
    predicted = closed_form(name).components.get(component, 0)
    # Norms stay in memory, whatever is swapped; torch counts the steps of each tensor.
    total = sum(components_of(counted, name).values())
    assert predicted == pytest.approx(found, rel=0.01, abs=0.0005 * total)


@pytest.mark.parametrize("case", OPTIMIZERS, ids=lambda case: case.name)
def test_what_an_optimizer_remembers(counted, case):
    assert case.plan.verdict == "feasible", case.plan.findings
    predicted, found = closed_form(case.name).components, components_of(counted, case.name)
    for component in ("parameters", "optimizer_states"):
        assert predicted[component] == pytest.approx(found[component], rel=0.01, abs=1000)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_what_the_engine_holds_as_the_step_begins(counted, name):
    """ZeRO-1 and 2 hold the gradient of a parameter twice that two shards share."""
    found = components_of(counted, name)["gradients"]
    predicted = closed_form(name).components["gradients"]
    settings = case_of(name).plan.settings
    shared = 0
    if settings.optimizer_wrapper is OptimizerWrapper.zero12 and not settings.offloads_optimizer:
        shared = shape_of(name).largest_parameter * DTYPE_BYTES[settings.grad_accum_dtype]
    assert 0.99 * predicted <= found <= 1.01 * predicted + shared


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_is_left(counted, name):
    found = components_of(counted, name)
    assert found.get("other", 0) < 0.002 * sum(found.values())


@pytest.mark.parametrize("name", [name for name in NAMES if "on" in name.split(", ")[1].split() and "no offload" not in name])
def test_page_locked_memory_is_rounded_up_block_by_block(counted, name):
    blocks = counted[name]["pinned"]
    case = case_of(name)
    locked = sum(pinned_bytes(size) for size in blocks)
    settings = replace(case.plan.settings, accelerator=Accelerator.cuda)
    on_gpu, pageable = (
        host_states(
            replace(settings, pin_memory=pinned),
            shape_of(name),
            data_parallel_size=case.plan.layout.data_parallel_size,
            accumulates=True,
            with_moments=False,
        )
        for pinned in (True, False)
    )
    rounding = on_gpu.total - pageable.total
    if settings.zero_stage == 2 and not mixes_gradient_formats(settings):
        # gradients of earlier micro-batches are locked parameter by parameter; the planner takes them for one block
        rounding = min(rounding, locked - sum(blocks))
    assert rounding == pytest.approx(locked - sum(blocks), rel=0.01, abs=0.01 * locked)
    if settings.offload_optimizer_device is OffloadDevice.none:
        assert locked == 0


def shape_of(name):
    case = case_of(name)
    coordinate = case.plan.partition.num_coordinates - 1
    return rank_shape(
        case.plan.model,
        case.plan.partition.held_by(coordinate),
        tensor_parallel_size=case.plan.layout.tensor_parallel_size,
        persistence_threshold=0,
    )
