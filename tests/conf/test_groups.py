"""Every file of every config group composes, and the shipped experiments can run where they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.config.multirun import composed_points, load_multirun
from orchestrator.config.options import all_options

CONF = Path(__file__).parents[2] / "conf"
NEEDS = {
    "model=hf": ["model.config_path=/nowhere"],
    "data=text": ["data.path=/data"],
    "data=tokens": ["data.path=/data"],
}


def choices() -> list[str]:
    files = [path for path in CONF.glob("*/*.yaml") if not path.name.startswith("_")]
    return sorted(f"{path.parent.name}={path.stem}" for path in files if path.parent.name not in ("experiment", "sweep"))


def experiments() -> list[str]:
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("choice", choices())
def test_every_choice_composes(choice: str) -> None:
    load_config([choice, *NEEDS.get(choice, [])])


@pytest.mark.parametrize("experiment", experiments())
def test_every_experiment_is_feasible(experiment: str) -> None:
    needs = [] if experiment == "smoke" else ["data.path=/data"]
    plan = plan_run(load_config([f"experiment={experiment}", *needs]))
    assert plan.fits, [finding.message for finding in plan.findings]


@pytest.mark.parametrize("sweep", sorted(path.stem for path in (CONF / "sweep").glob("*.yaml")))
def test_every_sweep_can_be_previewed_and_has_a_point_that_runs(sweep: str) -> None:
    words = ["command=launch", f"sweep={sweep}"]
    load_multirun(words)
    points = [point for point in composed_points(words) if point.config is not None and plan_run(point.config).fits]
    assert points


def test_every_option_is_documented() -> None:
    undocumented = [option.path for option in all_options() if len(option.documentation) < 10]
    assert not undocumented


def test_every_group_of_the_defaults_list_has_files() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir() and not path.name.startswith("_")}
    sections = {option.path.split(".")[0] for option in all_options() if "." in option.path}
    assert sections | {"experiment"} == groups
