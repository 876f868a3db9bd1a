"""Every file of every config group composes, and the shipped experiments can run where they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands.planned import plan_run
from orchestrator.config.load import load_config
from orchestrator.config.multirun import composed_points, load_multirun
from orchestrator.config.options import all_options
from orchestrator.errors import ConfigurationError

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


@pytest.mark.parametrize("overlay", ["experiment", "sweep"])
def test_an_overlay_without_its_package_line_is_told_which_line_is_missing(tmp_path: Path, overlay: str) -> None:
    (tmp_path / overlay).mkdir()
    (tmp_path / overlay / "mine.yaml").write_text("zero:\n  stage: 3\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        load_config([f"{overlay}=mine"], config_dir=tmp_path)
    assert [finding.fix for finding in refused.value.findings] == ["begin the file with the line: # @package _global_"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("model=/models/llama", "model=hf model.config_path=/models/llama;"),
        ("model=mine/config.json", "model=hf model.config_path=mine/config.json;"),
        ("model=mine/model/a.yaml", "--config-dir DIR model=NAME;"),
        ("experiment=mine/experiment/books.yaml", "--config-dir DIR experiment=NAME;"),
    ],
)
def test_a_path_in_place_of_an_option_is_told_how_files_are_named(word: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_config([word])
    (finding,) = refused.value.findings
    assert hint in finding.fix


def test_every_option_is_documented() -> None:
    undocumented = [option.path for option in all_options() if len(option.documentation) < 10]
    assert not undocumented


def test_every_group_of_the_defaults_list_has_files() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir() and not path.name.startswith("_")}
    sections = {option.path.split(".")[0] for option in all_options() if "." in option.path}
    assert sections | {"experiment"} == groups
