"""``wandb agent`` on the launch host, as far as it goes without a server: the command it runs, in the environment it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.command_line import orchestrator
from tests.unit.tracking.records import history, inspected, summary
from tests.unit.tracking.server import HANGS, served

EXAMPLE = Path(__file__).parents[1] / "data" / "wandb_sweep.yaml"
CHOSEN = {"optimizer.lr": {"value": 0.002}, "zero.stage": {"value": 2}}
RUN, SWEEP = "a1b2c3d4", "s1w2e3p4"


def words_of_the_agent(sweep: dict) -> list[str]:
    """The command as the agent puts it together for its choice of parameters."""
    sweeps = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    given = {**sweeps.create_sweep_command_args({"args": CHOSEN}), "program": [sweep["program"]]}
    words: list[str] = []
    for word in sweeps.create_sweep_command(sweep["command"]):
        words += given.get(word[2:-1], []) if word.startswith("${") and word.endswith("}") else [word]
    return words


def test_an_agents_run_is_trained_and_recorded_under_the_agents_id_though_the_server_hangs(tmp_path: Path) -> None:
    program, *words = words_of_the_agent(yaml.safe_load(EXAMPLE.read_text()))
    assert program == "orchestrator"
    assert words[-2:] == ["optimizer.lr=0.002", "zero.stage=2"]
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(yaml.safe_dump({"wandb_version": 1, **CHOSEN}))
    with served(queries=HANGS) as server:
        environment = {
            **server.environment,
            "WANDB_MODE": "online",
            "WANDB_SWEEP_ID": SWEEP,
            "WANDB_RUN_ID": RUN,
            "WANDB_SWEEP_PARAM_PATH": str(parameters),
        }
        ended = orchestrator(*words, "tracking.init_timeout_seconds=2", "output=json", cwd=tmp_path, environment=environment)
    assert ended.code == 0, ended.everything
    attempt = tmp_path / "runs" / "agent" / RUN / "attempts" / "1"
    record = ended.json["result"]["wandb"]
    assert (record["id"], record["mode"]) == (RUN, "offline")
    assert ended.json["wandb_sync"] == f"wandb sync {record['directory']}"
    assert ended.stderr.count("it could not go online") == 1
    records = inspected(record["directory"])
    (run,) = records["run"]
    assert (run["run_id"], run["sweep_id"]) == (RUN, SWEEP)
    config = run["config"]["update"]
    assert (config["optimizer.lr"], config["config"]["optimizer"]["lr"], config["config"]["zero"]["stage"]) == (0.002, 0.002, 2)
    entries = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    for kind, name in (("train", "loss"), ("evaluate", "held_out_loss")):
        assert history(records, f"{kind}/{name}") == pytest.approx([entry[name] for entry in entries if entry["kind"] == kind])
    assert summary(records)["metric"] == pytest.approx(ended.json["result"]["metric"])
