"""Published training speeds: how rows are read, and what the statistics say of predictions."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.enums import RecomputePolicy
from tests.benchmarks.published_devices import find_device
from tests.benchmarks.published_fit import Fit, fit_of
from tests.benchmarks.published_rows import Row, read_rows
from tests.benchmarks.published_shapes import known_shape
from tests.benchmarks.published_throughput import Run, System, out_of_memory, read_runs, source_of, states_a_run
from tests.benchmarks.published_time import predicted_seconds
from tests.benchmarks.time_accuracy import judge, main, summary
from tests.benchmarks.time_gates import megatron_errors
from tests.benchmarks.time_statistics import errors, pick, random_regret, rank_correlation, summarize_picks

PUBLISHED = Path(__file__).parents[2] / "data" / "throughput_published.csv"
ROWS = read_rows(PUBLISHED)
STATED = {
    "id": "own-1",
    "source": "own",
    "model": "GPT 18.4B",
    "layers": "40",
    "hidden": "6144",
    "heads": "48",
    "seq_len": "2048",
    "global_batch": "1024",
    "micro_batch": "8",
    "gpus": "256",
    "gpu": "A100-SXM-80GB",
    "tp": "8",
    "pp": "1",
    "dp": "32",
    "recompute": "full",
    "precision": "fp16",
    "step_time_s": "9.6",
}


def row(**changes: str) -> Row:
    return Row(fields={**STATED, **changes}, notes={})


def run(**changes: str) -> Run:
    [found] = read_runs([row(**changes)])
    assert isinstance(found, Run), found
    return found


class TestReader:
    def test_a_row_becomes_the_planners_inputs(self):
        found = run(pp="4", dp="8")
        layout = found.layout
        sizes = (layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size)
        assert (sizes, layout.gradient_accumulation_steps, layout.train_batch_size) == ((8, 4, 8), 16, 1024)
        assert found.model.num_parameters == pytest.approx(18.4e9, rel=0.01)
        assert (len(found.cluster.hosts), found.cluster.devices_per_host) == (32, 8)
        assert (found.recompute, found.zero_stage, found.system) == (RecomputePolicy.full, 0, System.megatron)

    @pytest.mark.parametrize(
        ("changes", "seconds"),
        [
            ({}, 9.6),
            ({"step_time_s": "", "tokens_per_s_per_gpu": "1000"}, 1024 * 2048 / 1000 / 256),
            ({"step_time_s": "", "tflops_per_gpu": "135", "notes": "TFLOP count includes recompute"}, 9.40),
            ({"step_time_s": "", "tflops_per_gpu": "135"}, 7.08),
            (
                {"step_time_s": "", "tflops_per_gpu": "100", "n_params": "18e9", "notes": "TFLOP = 8*params*tokens/time"},
                8 * 18e9 * 1024 * 2048 / 100e12 / 256,
            ),
        ],
        ids=["step time", "tokens/s", "recomputation counted", "recomputation not counted", "parameters x tokens"],
    )
    def test_seconds_of_a_step_by_the_count_of_the_source(self, changes, seconds):
        assert run(**changes).measured_seconds == pytest.approx(seconds, rel=0.005)

    @pytest.mark.parametrize(
        ("text", "seconds"), [("9.6 s", 9.6), ("9600 ms", 9.6), ("9,6", 9.6), ("9,600", 9600), ("9.6x", None)]
    )
    def test_numbers_as_people_write_them(self, text, seconds):
        assert row(step_time_s=text).number("step_time_s") == seconds

    @pytest.mark.parametrize(
        "changes", [{"global_batch": "-5"}, {"ffn": "-1"}, {"vocab": "-1"}, {"kv_heads": "-1"}, {"dp": "-1"}]
    )
    def test_a_size_below_one_is_not_stated(self, changes):
        [name] = changes
        assert run(**changes) == replace(run(**{name: ""}), row=run(**changes).row)

    def test_full_precision_is_slower(self):
        seconds = {precision: predicted_seconds(run(precision=precision)) for precision in ("fp16", "tf32", "fp32")}
        assert seconds["fp32"] > 4 * seconds["tf32"] > 6 * seconds["fp16"]

    @pytest.mark.parametrize("name", ["Llama 3.1 8B", "llama-3-8b", "LLaMA3 8B"])
    def test_a_named_model_has_its_shape(self, name):
        shape = known_shape(name)
        assert shape is not None
        assert shape.hidden == 4096
        found = run(model=name, layers="", hidden="", heads="", tp="1", dp="256")
        assert found.model.num_parameters == pytest.approx(8.03e9, rel=0.01)

    def test_heads_and_layers_that_a_source_leaves_out(self):
        rows = [row(id="own-1", heads="24"), row(id="own-2", heads="", layers="", n_params="18.4e9")]
        found = read_runs(rows)[1]
        assert isinstance(found, Run)
        assert (found.model.num_attention_heads, found.model.num_hidden_layers) == (24, 40)

    def test_a_batch_that_is_no_whole_number_of_passes_is_scaled(self):
        found = run(global_batch="1000")
        assert found.layout.train_batch_size * found.scale == 1000

    def test_a_shared_sequence_counts_as_replicas(self):
        found = run(dp="16", notes="cp 2")
        assert (found.layout.data_parallel_size, found.context_parallel_size) == (32, 2)
        assert found.layout.train_batch_size * found.scale / found.context_parallel_size == 1024

    @pytest.mark.parametrize(
        ("label", "device"),
        [
            ("A100", "a100-sxm-80"),
            ("A100-SXM-40GB", "a100-sxm-40"),
            ("A100-PCIe-40GB", "a100-pcie-40"),
            ("H100-SXM-96GB-HBM2e-500W", "h100-sxm-80"),
            ("GB200", "gb200-186"),
            ("B200-SXM", "b200-sxm-180"),
            ("RTX 4090", "rtx4090"),
            ("MI300X", "mi300x"),
            ("MI300", "mi300x"),
            ("A6000", "rtxa6000"),
            ("NVIDIA-A800-SXM4-80GB", "a800-sxm-80"),
            ("H20", "h20-sxm-96"),
            ("H200", "h200-sxm-141"),
        ],
    )
    def test_devices_by_their_label(self, label, device):
        found = find_device(label)
        assert found is not None
        assert found["id"] == device

    @pytest.mark.parametrize(
        ("changes", "devices", "network"),
        [
            ({}, 8, 200e9),
            ({"notes": "8-GPU nodes, 800 Gb/s per node"}, 8, 100e9),
            ({"gpu": "V100-SXM-32GB", "notes": "100 Gb/s per node; 16-GPU nodes"}, 16, 12.5e9),
            ({"source": "A log (Jean Zay V100, 4 GPUs per node)", "gpu": "V100-SXM-16GB"}, 4, 50e9),
            ({"source": "a table with 1600 Gbps node-node interconnect"}, 8, 200e9),
            ({"notes": ". Gb/s per node"}, 8, 200e9),
        ],
    )
    def test_hosts_and_network_as_stated(self, changes, devices, network):
        cluster = run(**changes).cluster
        assert (cluster.devices_per_host, cluster.network_bandwidth) == (devices, network)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"tp": "", "pp": ""}, "layout"),
            ({"gpu": "abacus"}, "device"),
            ({"global_batch": "", "micro_batch": ""}, "batch"),
            ({"tp": "48"}, "divide"),
            ({"notes": "MoE ep 64"}, "experts"),
            ({"model": "Qwen3-30B-A3B"}, "experts"),
            ({"model": "DeepSeek-V3"}, "experts"),
            ({"tp": "x"}, "tp is 'x'"),
            ({"gpus": "10000000000", "dp": ""}, "no cluster"),
            ({"seq_len": ""}, "seq_len"),
        ],
    )
    def test_what_cannot_be_predicted_says_why(self, changes, reason):
        [found] = read_runs([row(**changes)])
        assert isinstance(found, str)
        assert reason in found


@pytest.fixture(scope="module")
def outcomes():
    return judge(ROWS)


@pytest.fixture(scope="module")
def result(outcomes):
    return summary(outcomes)


class TestPublishedFile:
    def test_nearly_all_rows_that_state_a_run_become_one(self, outcomes):
        stated = [outcome.run for outcome in outcomes if states_a_run(outcome.row)]
        assert sum(found is not None for found in stated) >= 0.99 * len(stated)

    def test_vtrain_is_two_sources(self):
        sources = [source_of(entry) for entry in ROWS]
        assert (sources.count("vtrain_multi"), sources.count("vtrain_single")) == (62, 810)

    def test_runs_out_of_memory_are_not_accepted(self, outcomes):
        """But one, which by the readings of its neighbours would fit with 11 GiB to spare."""
        runs = [outcome.run for outcome in outcomes if outcome.run is not None and out_of_memory(outcome.row)]
        accepted = [found.row.id for found in runs if fit_of(found) in (Fit.accepted, Fit.unknown)]
        assert accepted == ["bloom-139"]


class TestGates:
    """Without calibration, on rows that the constants were not chosen on."""

    @pytest.mark.parametrize(
        ("source", "mean", "mean_scaled"), [("vtrain_multi", 0.15, 0.10), ("vtrain_single", 0.20, 0.12), ("bloom", 0.20, 0.10)]
    )
    def test_mean_error(self, result, source, mean, mean_scaled):
        figures = result["sources"][source]
        assert figures["predicted"] >= 0.95 * figures["rows"]
        assert figures["mean"] <= mean
        assert figures["mean_scaled"] <= mean_scaled

    def test_megatron_of_2021_and_2022(self, outcomes):
        mean, mean_scaled = megatron_errors(outcomes)
        assert mean is not None and mean_scaled is not None
        assert (mean <= 0.10, mean_scaled <= 0.04) == (True, True)

    def test_the_layout_that_is_picked(self, result):
        several, single = result["groups"]["vtrain_multi"], result["groups"]["vtrain_single"]
        assert several["regret_max"] <= 0.05
        assert single["regret_mean"] <= 0.05
        assert single["top3"] >= 0.8

    def test_the_best_measured_layout_of_bloom_is_among_the_first_three(self, result):
        assert result["groups"]["bloom"]["top3"] == 1

    def test_rows_that_ran_are_not_refused(self, result):
        ran = result["memory"]["ran"]
        assert ran["refused"] <= 0.05 * ran["rows"]


class TestStrangeFiles:
    """Files with missing columns, odd cells and broken rows get figures, never a traceback."""

    @staticmethod
    def written(path: Path, rows: list[Mapping[str, str]]) -> Path:
        text = io.StringIO()
        names = list(dict.fromkeys(name for entry in rows for name in entry))
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(text.getvalue())
        return path

    def test_odd_cells(self, tmp_path, capsys):
        odd = ["", "-1", "0", "nan", "1e400", "many", "1,024", "8.5", "9" * 40, "fp8", "OOM"]
        draw = random.Random(0)
        rows = [{**STATED, **{name: draw.choice(odd) for name in draw.sample(list(STATED), 3)}} for _ in range(300)]
        main([str(self.written(tmp_path / "odd.csv", rows)), "--json"])
        assert json.loads(capsys.readouterr().out)["sources"]

    @pytest.mark.parametrize("text", ["", "id\n", "id,model\nx,y\n", "\ufeffid;model\n1;2\n", "a,b\n1,2,3,4\n"])
    @pytest.mark.parametrize("options", [[], ["--json"], ["--rows"]])
    def test_files_that_say_nothing(self, tmp_path, capsys, text, options):
        path = tmp_path / "empty.csv"
        path.write_text(text)
        main([str(path), *options])
        assert capsys.readouterr().out

    @pytest.mark.parametrize(
        "change",
        [
            lambda text: text.encode("utf-16"),
            lambda text: text.replace(",", ";").encode(),
            lambda text: text.replace(",", " , ").encode(),
            lambda text: text.replace("hidden", "Hidden").encode("utf-8-sig"),
            lambda text: text.replace("own-1", "own-1 \xe9").encode("latin-1"),
        ],
        ids=["utf-16", "semicolons", "spaces", "capitals", "latin-1"],
    )
    def test_other_spellings_of_a_file_say_the_same(self, tmp_path, capsys, change):
        path = self.written(tmp_path / "one.csv", [STATED])
        path.write_bytes(change(path.read_text()))
        main([str(path), "--json"])
        assert json.loads(capsys.readouterr().out)["sources"]["own"]["predicted"] == 1

    def test_rows_that_are_not_predicted_are_named(self, tmp_path, capsys):
        main([str(self.written(tmp_path / "two.csv", [STATED, {**STATED, "gpu": "abacus"}])), "--json"])
        assert json.loads(capsys.readouterr().out)["not_predicted"] == {"own": {"the device abacus is not known": 1}}

    def test_a_cell_without_end(self, tmp_path):
        path = tmp_path / "long.csv"
        path.write_text("id\n" + 200_000 * "x")
        with pytest.raises(SystemExit, match="field larger"):
            main([str(path)])

    def test_a_file_that_is_not_there(self, tmp_path):
        with pytest.raises(SystemExit, match="No such file"):
            main([str(tmp_path / "none.csv")])

    def test_the_object_has_the_promised_keys(self, tmp_path, capsys):
        rows = [{**STATED, "id": f"vtrain-m-{micro}", "micro_batch": str(micro)} for micro in (1, 2, 4, 8, 16)]
        main([str(self.written(tmp_path / "five.csv", rows)), "--json"])
        result = json.loads(capsys.readouterr().out)
        source, group = result["sources"]["vtrain_multi"], result["groups"]["vtrain_multi"]
        assert set(source) >= {"rows", "predicted", "mean", "median", "p90", "bias", "mean_scaled", "rank_correlation"}
        assert set(group) >= {"groups", "regret_mean", "regret_max", "top1", "top3"}
        assert (source["rows"], source["predicted"], group["groups"]) == (5, 5, 1)


class TestStatistics:
    def test_errors_are_shares_of_the_measured_time(self):
        found = errors([1.1, 1.8, 3.0], [1.0, 2.0, 3.0])
        assert (found.mean, found.median, found.p90) == pytest.approx((0.2 / 3, 0.1, 0.1))
        assert found.bias == pytest.approx(0)

    def test_one_factor_of_the_other_rows_mends_a_bias(self):
        assert errors([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).mean_scaled == pytest.approx(0)
        alone = errors([1.0, 1.0, 1.0], [2.0, 2.0, 4.0])
        assert alone.mean_scaled == pytest.approx((0.5 + 0.5 + 0.5) / 3)

    def test_a_single_row_keeps_its_error(self):
        assert errors([1.0], [2.0]).mean_scaled == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            ([1, 2, 3], [10, 20, 30], 1.0),
            ([1, 2, 3], [3, 2, 1], -1.0),
            ([1, 1, 2], [1, 2, 3], 0.8660254),
            ([1, 1], [1, 2], None),
        ],
    )
    def test_rank_correlation(self, left, right, expected):
        assert rank_correlation(left, right) == (expected if expected is None else pytest.approx(expected))

    def test_the_pick_pays_for_what_it_misses(self):
        found = pick([1.0, 2.0, 3.0, 4.0, 5.0], [12.0, 11.0, 13.0, 10.0, 14.0])
        assert (found.regret, found.is_best, found.best_in_top) == (pytest.approx(0.2), False, False)

    def test_an_order_that_tells_nothing_picks_at_random(self):
        measured = [10.0, 11.0, 12.0, 13.0]
        found = pick([1.0] * 4, measured)
        assert found.regret == pytest.approx(random_regret(measured))
        assert not found.best_in_top

    def test_groups_together(self):
        found = summarize_picks([pick([1.0, 2.0], [1.0, 2.0]), pick([2.0, 1.0], [1.0, 2.0])])
        assert (found.groups, found.regret_mean, found.regret_max, found.top1) == (2, 0.5, 1.0, 0.5)
