"""What a worker leaves behind: metrics, a result, a W&B run, or the reason why not."""

from __future__ import annotations

import gzip
import json
import math
import time
from pathlib import Path

import pytest

from orchestrator.config.load import load_config
from orchestrator.run_dir import METRICS, read_json
from tests.distributed.attempts import WORKER, curve, entries, failure, new_attempt, trained
from tests.distributed.ranks import RankFailedError, run_ranks, start_ranks


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A training on real text over two ranks, tracked offline."""
    text = tmp_path_factory.mktemp("text") / "story.txt"
    text.write_text("".join(f"line {number} of a story that repeats itself\n" for number in range(2000)))
    options = (
        "data=text",
        f"data.path={text}",
        "data.tokenizer_vocab_size=300",
        "model.vocab_size=320",
        "tracking=wandb_offline",
    )
    profile = ("training.profile.steps=[4]", "training.profile.ranks=[1]")
    steps = (
        *profile,
        "training.max_steps=30",
        "training.evaluate_every=10",
        "training.log_every=5",
        "zero=stage1",
        "precision=bf16",
    )
    return trained(tmp_path_factory.mktemp("runs") / "run", *options, *steps, world_size=2)


def test_training_on_text_learns_more_than_the_token_frequencies(finished):
    result = finished.result
    assert result["held_out_loss"] < result["unigram_entropy"] < math.log(320)
    assert result["final_loss"] == curve(finished)[-1]
    assert [entry["step"] for entry in entries(finished, "train")] == [5, 10, 15, 20, 25, 30]
    assert [entry["step"] for entry in entries(finished, "evaluate")] == [10, 20, 30]


def test_the_result_says_what_was_done_and_what_it_took(finished):
    result = finished.result
    assert (result["status"], result["attempt"], result["steps"]) == ("completed", 1, 30)
    assert result["tokens"] == 30 * 16 * 16
    assert result["tokens_per_second"] > 0
    memory = result["memory"]
    assert [entry["rank"] for entry in memory["ranks"]] == [0, 1]
    assert memory["measured_bytes"] == max(entry["measured_bytes"] for entry in memory["ranks"]) > 0
    assert memory["predicted_bytes"] > 0
    assert read_json(Path(result["tokenizer"]))["model"]["type"] == "BPE"
    assert finished.failures == []


def test_the_rank_and_the_step_that_were_chosen_are_profiled(finished):
    folder = Path(finished.result["profile"])
    (trace,) = folder.iterdir()
    assert trace == finished.path / "profile" / "rank_1_step_4.trace.json.gz"
    names = {event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert "aten::mm" in names and any("allreduce" in name or "reduce" in name for name in names if name.startswith("gloo"))


def test_only_the_first_rank_speaks_to_the_user(finished):
    lines = [(finished.path / "ranks" / f"rank_{rank}.log").read_text().splitlines() for rank in (0, 1)]
    said = [[line for line in output if line.startswith("[orchestrator] ")] for output in lines]
    assert said[1] == []
    for expected in ("data:", "model tiny:", "step 30/30  loss", "held-out loss", "W&B offline", "profile of ranks 1"):
        assert any(expected in line for line in said[0]), expected


def test_wandb_has_one_run_of_the_first_rank(finished):
    record = finished.result["wandb"]
    assert record["mode"] == "offline"
    assert [str(path) for path in finished.path.glob("wandb/offline-run-*")] == [record["directory"]]


def test_closing_the_record_keeps_no_other_rank_waiting(tmp_path):
    attempt = new_attempt(tmp_path / "run", ("training.max_steps=3", "tracking=wandb_offline"), world_size=2)
    function = "tests.distributed.tracking:joined_while_closing"
    assert run_ranks(function, attempt.path, world_size=2, directory=tmp_path / "ranks") == [[False], []]
    assert attempt.result["wandb"]["mode"] == "offline"


def test_steps_that_overflow_in_fp16_are_said_and_use_up_no_learning_rate(tmp_path):
    options = (
        "precision=fp16",
        "precision.initial_scale_power=24",
        "precision.hysteresis=1",
        "training.max_steps=16",
        "zero=stage1",
    )
    attempt = new_attempt(tmp_path / "run", (*options, "cluster.precisions=[fp16]"), world_size=1)
    run_ranks("tests.distributed.fp16:run_with_fp16", attempt.path, world_size=1, directory=attempt.path / "ranks")
    steps = entries(attempt, "train")
    skipped = [entry["skipped"] for entry in steps]
    assert skipped[0]
    assert not skipped[-1]
    rates = [entry["lr"] for entry in steps]
    first_taken = skipped.index(False)
    assert rates[first_taken] == rates[0] < rates[first_taken + 1]
    scales = [entry["loss_scale"] for entry in steps]
    assert scales[first_taken] < scales[0] == 2**24
    assert attempt.result["steps"] == 16


def test_a_training_that_diverges_fails_with_the_step(tmp_path):
    attempt = new_attempt(
        tmp_path / "run", ("model.family=gpt2", "model.num_key_value_heads=null", "optimizer.lr=1e15"), world_size=1
    )
    with pytest.raises(RankFailedError):
        run_ranks(WORKER, attempt.path, world_size=1, directory=attempt.path / "ranks")
    assert "diverged" in failure(attempt, 0)["error"]
    assert failure(attempt, 0)["memory"] is None
    assert attempt.result is None


def num_parameters(attempt):
    return sum(stage["parameters"] for stage in read_json(attempt.path / "plan.json")["partition"]["stages"])


@pytest.mark.parametrize(("place", "requested"), [("host", 2**50), ("device", 2.5 * 2**30)])
def test_a_rank_that_finds_no_memory_leaves_what_it_had(tmp_path, place, requested):
    attempt = new_attempt(tmp_path / "run", (), world_size=1)
    function = "tests.distributed.memory_limits:run_out_of"
    with pytest.raises(RankFailedError):
        run_ranks(function, place, attempt.path, world_size=1, directory=attempt.path / "ranks")
    memory = failure(attempt, 0)["memory"]
    assert (memory["place"], memory["requested_bytes"]) == (place, requested)
    assert 0 < memory["resident_bytes"] <= memory["resident_peak_bytes"] < memory["host_total_bytes"]
    assert memory["device_total_bytes"] is None
    assert memory["components"]["parameters"] == 4 * num_parameters(attempt)


def test_started_with_another_number_of_processes_the_worker_refuses(tmp_path):
    attempt = new_attempt(tmp_path / "run", (), world_size=2)
    with pytest.raises(RankFailedError):
        run_ranks(WORKER, attempt.path, world_size=1, directory=attempt.path / "ranks")
    assert "made for 2 processes, 1 were started" in failure(attempt, 0)["error"]


@pytest.mark.parametrize("stage", [1, 3])
def test_the_timeout_holds_in_every_group_the_engine_uses(tmp_path, stage):
    options = (f"zero=stage{stage}", "precision=bf16", "communication.timeout_minutes=7")
    attempt = new_attempt(tmp_path / "run", options, world_size=2)
    function = "tests.distributed.timeouts:timeouts_of_the_engine"
    found = run_ranks(function, attempt.path, world_size=2, directory=tmp_path / "ranks")
    assert found == [[7 * 60.0] * 3] * 2


def test_a_worker_reads_the_model_from_its_attempt_and_not_the_users_file(tmp_path):
    file = tmp_path / "config.json"
    entries_of_file = {
        "model_type": "llama",
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    file.write_text(json.dumps(entries_of_file))
    names = ("family", *list(entries_of_file)[1:], "tie_word_embeddings")
    options = (f"model.config_path={file}", *(f"model.{name}=null" for name in names), "training.max_steps=2")
    attempt = new_attempt(tmp_path / "run", options, world_size=1)
    file.unlink()
    run_ranks(WORKER, attempt.path, world_size=1, directory=attempt.path / "ranks")
    assert attempt.result is not None
    assert attempt.result["steps"] == 2


def test_sigterm_ends_every_rank_and_leaves_no_shared_memory(tmp_path):
    attempt = new_attempt(tmp_path / "run", ("training.max_steps=100000",), world_size=2)
    ranks = start_ranks("orchestrator.worker.start:main", [str(attempt.path)], world_size=2, directory=attempt.path / "ranks")
    deadline = time.monotonic() + 240
    while not (attempt.path / METRICS).exists() or not entries(attempt, "train"):
        assert time.monotonic() < deadline, ranks.output(0)
        time.sleep(0.05)
    for process in ranks.processes:
        process.terminate()
    for process in ranks.processes:
        process.join(10)
    codes = [process.exitcode for process in ranks.processes]
    ranks.kill()
    assert codes == [-15, -15]
    assert list(Path("/dev/shm").glob(f"deepspeed_*_{ranks.port}_*")) == []
    assert attempt.result is None


def test_text_that_vanished_is_a_finding_and_not_a_traceback(tmp_path):
    text = tmp_path / "story.txt"
    text.write_text("a story\n" * 2000)
    options = ("data=text", f"data.path={text}", "data.tokenizer_vocab_size=300", "model.vocab_size=320")
    attempt = new_attempt(tmp_path / "run", options, world_size=1)
    text.unlink()
    ranks = start_ranks("orchestrator.worker.start:main", [str(attempt.path)], world_size=1, directory=attempt.path / "ranks")
    ranks.processes[0].join(120)
    ranks.kill()
    assert ranks.processes[0].exitcode == 1
    assert f"error: data.path: {text} does not exist on this host" in ranks.output(0)
    assert "Traceback" not in ranks.output(0)
    assert "data.path" in failure(attempt, 0)["error"]


def test_the_first_start_knows_which_operators_it_has_to_build(tmp_path):
    config = load_config(["cluster=local_cpu", "offload=optimizer_cpu"])
    function = "tests.distributed.operators:operators_before_and_after_a_build"
    ((before, after),) = run_ranks(function, config, tmp_path / "extensions", world_size=1, directory=tmp_path / "ranks")
    assert before == ["deepspeed_shm_comm", "cpu_adam"]
    assert after == ["cpu_adam"]
