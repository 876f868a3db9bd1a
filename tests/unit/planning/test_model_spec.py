"""The shape of a model from presets and from config.json: exact counts, and every problem reported at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.config.enums import AttentionImplementation, Family, RecomputePolicy
from orchestrator.config.schema import ModelConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding
from orchestrator.planning.families import FAMILIES
from orchestrator.planning.layers import layer_activation_bytes, model_flops_per_token
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_config, model_spec_from_hf
from tests.unit.models.tiny import TINY, tiny_spec

CONF = Path(__file__).parents[3] / "conf"
PRESETS = sorted(path.stem for path in (CONF / "model").glob("*.yaml") if not path.stem.startswith("_") and path.stem != "hf")
KNOWN_COUNTS = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "llama_2_7b": 6_738_415_616,
    "llama_2_13b": 13_015_864_320,
    "llama_2_70b": 68_976_648_192,
    "llama_3_1b": 1_235_814_400,
    "llama_3_8b": 8_030_261_248,
    "llama_3_70b": 70_553_706_496,
    "llama_3_405b": 405_853_388_800,
    "mistral_7b": 7_248_023_552,
    "qwen3_0_6b": 596_049_920,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
    "gpt_neox_20b": 20_554_567_680,
    "gemma_2_2b": 2_614_341_888,
    "gemma_2_9b": 9_241_705_984,
    "gemma_2_27b": 27_227_128_320,
    "phi_3_mini": 3_821_079_552,
    "phi_3_medium_14b": 13_960_238_080,
}


FACTORS = {"short_factor": [1.0, 1.0, 1.0, 1.0], "long_factor": [1.0, 1.0, 1.0]}


def preset(name: str) -> ModelConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose(overrides=[f"+model={name}"]).model
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelConfig), composed))
    assert isinstance(config, ModelConfig)
    return config


def local(path: Path, model_type: str) -> ModelConfig:
    attention = AttentionImplementation.sdpa if FAMILIES[Family(model_type)].sdpa else AttentionImplementation.eager
    return ModelConfig(name="local", config_path=str(path), attention_implementation=attention)


def on_meta(spec: ModelSpec) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**json.loads(json.dumps(dict(spec.hf_config)))),
            attn_implementation=spec.attention_implementation.value,
        )


def refused(config: ModelConfig) -> dict[str, Finding]:
    with pytest.raises(ConfigurationError) as refusal:
        model_spec_from_config(config)
    findings = refusal.value.findings
    assert all(finding.message and finding.fix for finding in findings)
    by_field = {finding.field: finding for finding in findings}
    assert len(by_field) == len(findings)
    return by_field


def small(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "name": "small",
        "family": Family.llama,
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    return ModelConfig(**{**shape, **changes})


@pytest.mark.parametrize("name", PRESETS)
def test_counts_of_presets_equal_the_hugging_face_module(name: str) -> None:
    spec = model_spec_from_config(preset(name))
    model = on_meta(spec)
    assert spec.name == name
    assert spec.num_parameters == model.num_parameters() == KNOWN_COUNTS.get(name, spec.num_parameters)
    layers = model.base_model.h if spec.family is Family.gpt2 else model.base_model.layers
    assert len(layers) == spec.num_hidden_layers
    assert spec.layer_parameters == sum(parameter.numel() for parameter in layers[0].parameters())
    head = model.get_output_embeddings().weight.numel()
    assert spec.head_parameters == (0 if spec.tie_word_embeddings else head)


def test_a_preset_of_every_promised_size_exists() -> None:
    assert set(KNOWN_COUNTS) | {"demo", "gpt3_175b", "qwen3_1_7b", "qwen3_4b", "qwen3_14b"} == set(PRESETS)


def test_gpt3_and_the_demo_are_as_large_as_they_say() -> None:
    assert model_spec_from_config(preset("gpt3_175b")).num_parameters == pytest.approx(175e9, rel=0.01)
    assert model_spec_from_config(preset("demo")).num_parameters == pytest.approx(5e6, rel=0.05)


def test_published_rope_scaling_reaches_hugging_face() -> None:
    rope = on_meta(model_spec_from_config(preset("llama_3_8b"))).config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("llama3", 8.0, 8192)
    assert on_meta(model_spec_from_config(preset("llama_3_1b"))).config.rope_parameters["factor"] == 32.0
    neox = on_meta(model_spec_from_config(preset("gpt_neox_20b"))).config.rope_parameters
    assert neox["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize("model_type", TINY)
@pytest.mark.parametrize("entries", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_a_saved_config_json_comes_back_as_the_same_model(tmp_path: Path, model_type: str, entries: dict[str, Any]) -> None:
    config = AutoConfig.for_model(**tiny_spec(model_type, **entries).hf_config)
    config.save_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / "config.json"):
        spec = model_spec_from_config(local(path, model_type))
        assert spec.family.value == model_type
        assert spec.num_parameters == on_meta(spec).num_parameters()
        with torch.device("meta"):
            assert spec.num_parameters == AutoModelForCausalLM.from_config(config).num_parameters()


@pytest.mark.parametrize("model_type", TINY)
def test_entries_a_config_json_leaves_out_have_hugging_faces_defaults(model_type: str) -> None:
    optional = {"num_key_value_heads", "head_dim", "n_inner", "tie_word_embeddings"}
    entries = {key: value for key, value in TINY[model_type].items() if key not in optional}
    entries |= {"hidden_size": 128, "num_attention_heads": 32} if "hidden_size" in entries else {}
    spec = model_spec_from_hf(
        {"model_type": model_type, **entries},
        name="sparse",
        attention_implementation=AttentionImplementation.eager,
        dropout=0.0,
    )
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **entries))
    assert spec.num_parameters == theirs.num_parameters()


def test_null_sizes_of_a_preset_follow_from_the_others() -> None:
    spec = model_spec_from_config(small())
    assert (spec.num_key_value_heads, spec.head_dim, spec.tie_word_embeddings) == (4, 8, False)
    assert model_spec_from_config(small(family=Family.gpt2, intermediate_size=None)).intermediate_size == 128
    assert model_spec_from_config(small(family=Family.qwen3)).head_dim == 8


def test_further_entries_are_merged_and_dropout_is_set_everywhere() -> None:
    spec = model_spec_from_config(
        small(dropout=0.1, hf_config={"attention_bias": True, "hidden_size": 32, "rms_norm_eps": 1e-3})
    )
    assert spec.hf_config["rms_norm_eps"] == 1e-3
    assert spec.hf_config["attention_dropout"] == 0.1
    assert spec.num_parameters == model_spec_from_config(small()).num_parameters + 2 * 4 * 32
    json.dumps(dict(spec.hf_config))


def test_extras_override_the_file_beyond_its_shape(tmp_path: Path) -> None:
    AutoConfig.for_model(**tiny_spec("llama").hf_config).save_pretrained(tmp_path)
    rope = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    config = ModelConfig(name="local", config_path=str(tmp_path), hf_config={"rope_parameters": rope})
    assert model_spec_from_config(config).hf_config["rope_parameters"] == rope
    findings = refused(ModelConfig(name="local", config_path=str(tmp_path), hf_config={"hidden_size": 64}))
    assert "hidden_size=64 contradicts" in findings["model.hf_config.hidden_size"].message


def test_every_problem_of_a_preset_is_reported_at_once() -> None:
    findings = refused(
        small(
            vocab_size=0,
            max_position_embeddings=None,
            hidden_size=33,
            num_key_value_heads=3,
            dropout=1.5,
            hf_config={
                "intermediate_size": 65,
                "rms_norm_epss": 1e-5,
                "attention_bias": "yes",
                "hidden_act": "silly",
                "attention_dropout": 0.2,
                "rope_parameters": {"rope_type": "llama3", "factor": 8.0},
            },
        )
    )
    assert set(findings) == {
        "model.vocab_size",
        "model.max_position_embeddings",
        "model.num_attention_heads",
        "model.num_key_value_heads",
        "model.dropout",
        "model.hf_config.intermediate_size",
        "model.hf_config.rms_norm_epss",
        "model.hf_config.attention_bias",
        "model.hf_config.hidden_act",
        "model.hf_config.attention_dropout",
        "model.hf_config.rope_parameters",
    }
    assert "33" in findings["model.num_attention_heads"].message
    assert "choose one of 1, 2, 4" in findings["model.num_key_value_heads"].fix
    assert "rms_norm_eps" in findings["model.hf_config.rms_norm_epss"].fix
    assert "low_freq_factor" in findings["model.hf_config.rope_parameters"].message


def test_every_problem_of_a_config_json_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {"model_type": "llama", "hidden_size": "32", "num_attention_heads": 4, "num_key_value_heads": 3, "vocab_size": 5}
        )
    )
    with pytest.raises(ConfigurationError) as refusal:
        model_spec_from_config(ModelConfig(name="broken", config_path=str(path), vocab_size=7, family=Family.gpt2))
    messages = [finding.message for finding in refusal.value.findings]
    for expected in ("model.vocab_size=7 is set", "model.family=gpt2", "hidden_size in", "num_hidden_layers is missing", "=3"):
        assert any(expected in message for message in messages), expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[1]", "holds a list"),
        ('{"model_type": "lama"}', "known are gpt2, llama"),
        ('{"model_type": "mixtral"}', "known are gpt2, llama"),
        ("{}", "model_type"),
        ('{"model_type": ["llama"]}', "known are"),
    ],
)
def test_an_unusable_config_json_is_a_finding(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    finding = refused(ModelConfig(name="local", config_path=str(tmp_path)))["model.config_path"]
    assert expected in finding.message
    if text == '{"model_type": "lama"}':
        assert finding.fix == "did you mean 'llama'?"
    elif "mixtral" in (text or ""):
        assert "models/families/README.md" in finding.fix


def test_what_is_no_plain_decoder_is_refused() -> None:
    for entries in ({"add_cross_attention": True}, {"quantization_config": {"bits": 4}}):
        with pytest.raises(ConfigurationError):
            tiny_spec("gpt2", **entries)


def test_sizes_a_family_cannot_have_are_refused() -> None:
    findings = refused(small(family=Family.gpt2, num_key_value_heads=2, head_dim=16))
    assert set(findings) == {"model.num_key_value_heads", "model.head_dim"}
    assert set(refused(small(num_attention_heads=32))) == {"model.head_dim"}
    assert set(refused(ModelConfig(name="nothing"))) == {"model.family"}


def test_a_head_dim_of_its_own_frees_the_hidden_size_where_hugging_face_allows_it() -> None:
    assert model_spec_from_config(small(family=Family.qwen3, num_attention_heads=6, head_dim=8)).head_dim == 8
    assert "model.num_attention_heads" in refused(small(family=Family.llama, num_attention_heads=6, head_dim=8))


@pytest.mark.parametrize("value", [None, True, 0, -1, 1.5, "32", [1], {"a": 1}])
@pytest.mark.parametrize("model_type", ["gpt2", "mistral", "qwen3", "gpt_neox", "gemma2", "phi3"])
def test_no_value_of_any_entry_of_a_config_json_gives_a_traceback(tmp_path: Path, model_type: str, value: Any) -> None:
    complete = AutoConfig.for_model(**tiny_spec(model_type).hf_config).to_dict()
    for key in complete:
        (tmp_path / "config.json").write_text(json.dumps({**complete, key: value}))
        try:
            spec = model_spec_from_config(local(tmp_path, model_type))
        except ConfigurationError:
            continue
        assert spec.num_parameters > 0
        assert model_flops_per_token(spec, 64) > 0
        assert (
            layer_activation_bytes(spec, micro_batch=1, sequence_length=64, dtype_bytes=2, recompute=RecomputePolicy.none) > 0
        )


def test_sdpa_is_refused_where_hugging_face_cannot_cap_scores_with_it() -> None:
    findings = refused(small(family=Family.gemma2, hf_config={"pad_token_id": None}))
    assert "eager" in findings["model.attention_implementation"].fix
    eager = small(family=Family.gemma2, attention_implementation=AttentionImplementation.eager)
    assert model_spec_from_config(eager).head_dim == 8


@pytest.mark.parametrize(
    ("family", "entries", "expected"),
    [
        (Family.phi3, {}, "pad_token_id=32000 (the default of phi3) is no row"),
        (Family.llama, {"pad_token_id": 128}, "pad_token_id=128 is no row"),
        (Family.phi3, {"pad_token_id": 0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "phi3 knows default"),
        (Family.phi3, {"pad_token_id": 0, "partial_rotary_factor": 1.5}, "rotates 12 of the 8"),
        (Family.phi3, {"pad_token_id": 0, "rope_parameters": {"rope_type": "longrope", **FACTORS}}, "list of 4 numbers"),
        (Family.phi3, {"pad_token_id": 0, "sliding_window": 0}, "sliding_window=0 is not above 0"),
        (Family.gemma2, {"sliding_window": None}, "sliding_window=None"),
        (Family.gemma2, {"attn_logit_softcapping": 0.0}, "not above 0"),
        (Family.gemma2, {"attn_logit_softcapping": 50}, "is a int, not float or null"),
        (Family.gemma2, {"layer_types": ["full_attention"]}, "1 entries for num_hidden_layers=2"),
        (Family.qwen3, {"layer_types": ["full_attention", "window"]}, "layer_types has window"),
        (Family.qwen3, {"layer_types": ["full_attention", "sliding_attention"]}, "no sliding window is in use"),
    ],
)
def test_entries_hugging_face_stumbles_over_are_refused(family: Family, entries: dict[str, Any], expected: str) -> None:
    config = small(family=family, hf_config=entries, attention_implementation=AttentionImplementation.eager)
    (finding,) = refused(config).values()
    assert expected in finding.message
    assert finding.field.startswith("model.hf_config.")


def test_longrope_and_partial_rotation_build() -> None:
    factors = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "original_max_position_embeddings": 32}
    entries = {"pad_token_id": None, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.5}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    spec = model_spec_from_config(small(family=Family.phi3, hf_config={**entries, "rope_parameters": rope}))
    assert on_meta(spec).num_parameters() == spec.num_parameters
