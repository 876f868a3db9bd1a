"""Profiles of chosen steps: what is written, and that nothing is for the others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from deepspeed.accelerator import get_accelerator

from orchestrator.config.training import ProfileConfig
from orchestrator.worker.step_profile import StepProfiles


def recorded(tmp_path, *, rank=0, **options):
    """The events of every trace after four steps, by the file's name."""
    profiles = StepProfiles(ProfileConfig(**options), tmp_path, rank=rank)
    matrix = torch.ones(8, 8)
    for step in range(1, 5):
        with profiles.of_step(step):
            torch.mm(matrix, matrix)
    folder = tmp_path / "profile"
    files = sorted(folder.iterdir()) if folder.exists() else []
    return profiles, {file.name: json.loads(gzip.decompress(file.read_bytes()))["traceEvents"] for file in files}


def test_a_trace_of_each_chosen_step(tmp_path, capsys):
    profiles, traces = recorded(tmp_path, steps=[2, 4])
    assert list(traces) == ["rank_0_step_2.trace.json.gz", "rank_0_step_4.trace.json.gz"]
    for events in traces.values():
        assert sum(event["name"] == "aten::mm" for event in events) == 1
        assert not any(event["name"] == "[memory]" for event in events)
    assert profiles.folder == tmp_path / "profile"
    assert f"step 4  profile of ranks 0: {tmp_path / 'profile'}" in capsys.readouterr().out


@pytest.mark.parametrize("trace", [True, False])
def test_allocations_are_in_the_trace_without_a_gpu(tmp_path, trace):
    _, traces = recorded(tmp_path, steps=[3], trace=trace, memory=True)
    (events,) = traces.values()
    assert any(event["name"] == "[memory]" and event["args"]["Bytes"] == 8 * 8 * 4 for event in events)


def test_other_ranks_record_nothing_and_know_of_it(tmp_path):
    profiles, traces = recorded(tmp_path, rank=1, steps=[2], ranks=[0])
    assert traces == {}
    assert profiles.folder == tmp_path / "profile"


@pytest.mark.parametrize("options", [{}, {"steps": [9]}, {"steps": [2], "trace": False}, {"steps": [2], "ranks": []}])
def test_nothing_chosen_records_nothing(tmp_path, options):
    profiles, traces = recorded(tmp_path, **options)
    assert traces == {}
    assert profiles.folder is None


def test_a_step_that_fails_leaves_no_half_a_trace(tmp_path):
    profiles = StepProfiles(ProfileConfig(steps=[1, 2]), tmp_path, rank=0)
    with pytest.raises(FloatingPointError), profiles.of_step(1):
        raise FloatingPointError
    assert list((tmp_path / "profile").iterdir()) == []
    with profiles.of_step(2):
        pass
    assert len(list((tmp_path / "profile").iterdir())) == 1


def test_a_snapshot_of_cuda_memory_is_written_even_when_the_step_fails(tmp_path, monkeypatch):
    """What it holds is checked on a GPU (tests/gpu)."""
    calls = []
    monkeypatch.setattr(get_accelerator(), "device_name", lambda: "cuda")
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled="all", **_: calls.append(enabled))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: calls.append(Path(file).name))
    profiles = StepProfiles(ProfileConfig(steps=[7], trace=False, memory=True), tmp_path, rank=3)
    with profiles.of_step(7):
        pass
    assert calls == []
    profiles = StepProfiles(ProfileConfig(steps=[7], ranks=[3], trace=False, memory=True), tmp_path, rank=3)
    with pytest.raises(torch.OutOfMemoryError), profiles.of_step(7):
        raise torch.OutOfMemoryError
    assert calls == ["all", "rank_3_step_7.memory.pickle", None]
