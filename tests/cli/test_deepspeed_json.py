"""``deepspeed_json=FILE`` on the real command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import cli
from tests.cli.command_line import orchestrator

GOOD = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "gradient_clipping": 1.0,
}
WORDS = ("world_size=8", "model=llama_3_8b", "deepspeed_version=0.19.8")


@pytest.fixture
def good(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(GOOD))


@pytest.mark.usefixtures("good")
def test_a_good_file_is_feasible_and_has_the_shape_of_validate(tmp_path):
    ended = orchestrator("validate", "deepspeed_json=ds.json", *WORDS, "output=json", cwd=tmp_path, watched=True)
    assert ended.code == 0, ended.everything
    assert "STARTED A PROCESS" not in ended.stderr
    plain = orchestrator(
        "validate", "model=llama_3_8b", "cluster=dgx_h100", "training=default", "zero=stage3", "output=json", cwd=tmp_path
    )
    assert ended.json.keys() == plain.json.keys()
    assert ended.json["layout"]["gradient_accumulation_steps"] == 2
    assert {finding["severity"] for finding in ended.json["findings"]} <= {"info"}
    for finding in ended.json["findings"]:
        assert finding.keys() == {"rule", "severity", "field", "message", "fix"}


@pytest.mark.usefixtures("good")
def test_what_does_not_fit_comes_with_fixes_in_the_files_keys(tmp_path):
    ended = orchestrator("validate", "deepspeed_json=ds.json", "world_size=8", "model=llama_3_70b", "output=json", cwd=tmp_path)
    assert ended.code == 2
    assert ended.json["verdict"] == "infeasible"
    overrides = [override for fix in ended.json["fixes"] for override in fix["overrides"]]
    assert overrides
    assert not [override for override in overrides if override.startswith(("zero.", "offload.", "training.", "precision."))]


def test_compile_prints_the_corrected_file_and_tells_what_it_changed(tmp_path):
    original = '{\n # old\n "train_batch_size": "64", "amp": {"enabled": false}, "bf16": {"enabled": true},\n'
    original += ' "zero_optimization": {"stage": 2, "cpu_offload": true}, "optimizer": {"type": "AdamW"}\n}'
    file = tmp_path / "ds.json"
    file.write_text(original)
    ended = orchestrator("compile", "deepspeed_json=ds.json", *WORDS, cwd=tmp_path)
    assert ended.code == 0, ended.everything
    assert json.loads(ended.stdout) == {
        "train_batch_size": 64,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "optimizer": {"type": "AdamW"},
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
    }
    told = {line.split(": ")[1] for line in ended.stderr.splitlines() if line.startswith("changed: ")}
    assert told == {
        "train_batch_size",
        "amp",
        "zero_optimization.cpu_offload",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    }
    assert file.read_text() == original
    listed = orchestrator("compile", "deepspeed_json=ds.json", *WORDS, "output=json", cwd=tmp_path).json
    assert listed["deepspeed_json"] == json.loads(ended.stdout)
    assert {change["field"] for change in listed["changes"]} == told


def test_compile_refuses_what_it_cannot_correct(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({**GOOD, "zero_optimisation": {"stage": 1}, "amp": {"enabled": False}}))
    ended = orchestrator("compile", "deepspeed_json=ds.json", *WORDS, "output=json", cwd=tmp_path)
    assert ended.code == 2
    assert [finding["field"] for finding in ended.json["findings"] if finding["severity"] == "error"] == ["zero_optimisation"]


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize("words", [("launch",), ("launch", "-m", "seed=1"), ("export",), ("doctor",)])
def test_other_verbs_say_what_to_do_instead(tmp_path, words):
    ended = orchestrator(words[0], *words[1:], "deepspeed_json=ds.json", cwd=tmp_path, watched=True)
    assert ended.code == 2
    assert "compile" in ended.everything
    assert "STARTED A PROCESS" not in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("good")
def test_no_training_library_is_loaded(tmp_path):
    program = (
        "import sys\nfrom orchestrator import cli\n"
        f"codes = [cli.run([verb, 'deepspeed_json=ds.json', *{WORDS!r}]) for verb in ('validate', 'compile')]\n"
        "heavy = {'torch', 'deepspeed', 'transformers', 'accelerate', 'pydantic'} & sys.modules.keys()\n"
        "print('\\nRESULT', codes, sorted(heavy))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.splitlines()[-1] == "RESULT [0, 0] []"


BAD_FILES = {
    "empty": b"",
    "blank": b" \n\n",
    "list": b"[1]",
    "text": b"hello",
    "null": b"null",
    "byte-order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "Latin-1": b'{"a": "\xe9"}',
    "binary": bytes(range(256)),
    "open": b"{",
    "closed twice": b"{}}",
    "no colon": b'{"a" 1}',
    "open comment": b'{"a": 1 /* ',
    "open text": b'{"a": "b',
    "duplicate": b'{"train_batch_size": 1, "train_batch_size": 2}',
    "infinite": b'{"train_batch_size": 1e999}',
    "too many digits": b'{"train_batch_size": ' + b"9" * 5000 + b"}",
    "large": b'{"train_batch_size": 99999999999999999999999999}',
    "deep": b'{"a":' * 3000,
    "lone surrogate": b'{"a": "\\ud800"}',
    "empty mapping": b"{}",
    "empty key": b'{"": 1}',
    "batch as mapping": b'{"train_batch_size": {}}',
    "batch as list": b'{"train_batch_size": [8], "train_micro_batch_size_per_gpu": [[]]}',
    "batch below zero": b'{"train_batch_size": -8}',
    "zero as list": b'{"train_batch_size": 8, "zero_optimization": [3]}',
    "zero as number": b'{"train_batch_size": 8, "zero_optimization": 3}',
    "offload as number": b'{"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": 1}}',
    "optimizer as text": b'{"train_batch_size": 8, "optimizer": "AdamW"}',
    "params as list": b'{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": [1]}}',
    "type as mapping": b'{"train_batch_size": 8, "optimizer": {"type": {}}, "scheduler": {"type": []}}',
    "betas as text": b'{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"betas": "0.9"}}}',
    "everything null": b'{"train_batch_size": null, "zero_optimization": null, "fp16": null, "optimizer": null}',
    "markup": b'{"[bold]": "[/red]", "train_batch_size": 8}',
    "autotp negative": b'{"train_batch_size": 8, "tensor_parallel": {"autotp_size": -2}}',
    "autotp large": b'{"train_batch_size": 8, "tensor_parallel": {"autotp_size": 1000000}}',
    "sequence parallel large": b'{"train_batch_size": 8, "sequence_parallel_size": 1000000}',
    "buckets large": b'{"train_batch_size": 8, "zero_optimization": {"sub_group_size": 0, "reduce_bucket_size": 9e18}}',
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_in_words(name, tmp_path, capsys):
    file = tmp_path / "bad.json"
    file.write_bytes(BAD_FILES[name])
    code = cli.run(["validate", f"deepspeed_json={file}", *WORDS, "output=json"])
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert code == 2
    assert found["verdict"] in ("invalid", "infeasible")
    assert any(finding["severity"] == "error" and finding["fix"] for finding in found["findings"])


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("deepspeed_json=missing.json",), "deepspeed_json"),
        (("deepspeed_json=.",), "deepspeed_json"),
        (("deepspeed_json=eyJhIjogMX0=",), "deepspeed_json"),
        (("hf_arguments=missing.yaml",), "hf_arguments"),
        (("deepspeed_version=latest",), "deepspeed_version"),
        (("deepspeed_version=0.3",), "deepspeed_version"),
        (("world_size=0",), "world_size"),
        (("world_size=16", "cluster=dgx_h100"), "world_size"),
        (("zero=stage3",), "zero"),
        (("offload.optimizer_device=cpu",), "offload.optimizer_device"),
        (("experiment=demo",), "experiment"),
    ],
)
def test_bad_words_are_refused_by_their_name(words, field, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"deepspeed_json": "ds.json", "world_size": "8", "model": "llama_3_8b"}
    given |= dict(word.split("=", 1) for word in words)
    code = cli.run(["validate", *(f"{name}={value}" for name, value in given.items()), "output=json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 2
    assert field in {finding["field"] for finding in found["findings"] if finding["severity"] == "error"}


@pytest.mark.usefixtures("good")
def test_the_number_of_devices_must_be_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["validate", "deepspeed_json=ds.json", "model=llama_3_8b", "output=json"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["field"] == "world_size"


@pytest.mark.usefixtures("good")
def test_without_a_model_the_file_is_judged_and_no_memory_invented(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["validate", "deepspeed_json=ds.json", "world_size=8", "output=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "feasible"
    assert found["memory"] is None
    assert "model" in {finding["field"] for finding in found["findings"]}
