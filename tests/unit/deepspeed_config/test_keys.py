"""The key table says what the installed DeepSpeed has: every key, its kind, default, bounds and names."""

from __future__ import annotations

import pytest
from packaging.version import Version

from orchestrator.deepspeed_config.keys.entry import READ_RELEASES, Block, Key, Kind
from orchestrator.deepspeed_config.keys.optimizers import DEEPSPEED_OPTIMIZERS, SCHEDULERS, TORCH_OPTIMIZERS, TORCH_SCHEDULERS
from orchestrator.deepspeed_config.keys.table import BATCH_KEYS, ROOT
from tests.unit.deepspeed_config.installed import ask

KINDS = {
    "bool": Kind.boolean,
    "int": Kind.integer,
    "float": Kind.number,
    "str": Kind.text,
    "Path": Kind.text,
    "list": Kind.items,
    "tuple": Kind.items,
    "dict": Kind.mapping,
    "object": Kind.anything,
    "dtype": Kind.nothing,
}
MODELS = (
    "zero_optimization",
    "zero_optimization.offload_param",
    "zero_optimization.offload_optimizer",
    "zero_optimization.zenflow",
    "zero_optimization.leaf_module",
    "fp16",
    "bf16",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "comms_logger",
    "compile",
    "hybrid_engine",
    "tensor_parallel",
    "tensor_parallel.tensor_parallel",
    "timers.throughput",
    "weight_quantization",
)
TEXTS = {"classes", "names", "name_suffixes", "passes"}
"""Lists whose items are texts; pydantic's description of them is a list."""
UNLIKE_THEIR_ANNOTATION = {
    "zero_optimization.zenflow.select_interval": '"auto" or a number; the field is a text or a number, default "auto"',
    "zero_optimization.zenflow.update_interval": '"auto" or a number; the field is a text or a number, default "auto"',
    "tensor_parallel.dtype": "the default is a torch dtype",
}


@pytest.fixture(scope="module")
def installed():
    return ask("describe")


def block_at(path: str) -> Block:
    entry = ROOT.find(path)
    assert isinstance(entry, Block)
    return entry


def plain(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("path", MODELS)
def test_a_model_has_the_keys_of_the_table(installed, path):
    ours = {entry.alias or entry.name: entry for entry in block_at(path).entries if entry.removed is None}
    theirs = installed["models"][path]
    assert {name for entry in ours.values() for name in entry.names} == {
        name for own, field in theirs.items() for name in (own, field["alias"]) if name
    }


@pytest.mark.parametrize("path", MODELS)
def test_a_model_has_the_kinds_defaults_and_bounds_of_the_table(installed, path):
    block = block_at(path)
    for name, field in installed["models"][path].items():
        entry = block.by_name[name]
        where = f"{path}.{name}"
        if isinstance(entry, Block):
            assert entry.optional == field["optional"] or name in ("leaf_module", "tensor_parallel"), where
            continue
        assert bool(entry.deprecated_for) == field["deprecated"], where
        if where in UNLIKE_THEIR_ANNOTATION:
            continue
        assert entry.kind is (Kind.texts if name in TEXTS else KINDS[field["kind"]]), where
        assert plain(entry.default) == field["default"], where
        assert entry.optional == field["optional"] or entry.kind is Kind.anything, where
        if field["choices"] is not None:
            assert set(entry.choices) == set(field["choices"]), where
        assert bounds(entry) == bounds_of(entry, field), where


def bounds(entry: Key) -> dict[str, float]:
    stated = {name: getattr(entry, name) for name in ("minimum", "above", "maximum", "below")}
    return {name: value for name, value in stated.items() if value is not None}


def bounds_of(entry: Key, field: dict) -> dict[str, float]:
    """Their bounds in our terms: above 0 is at least 1 for a whole number; loss_scale and zenflow check in functions."""
    found = {name: field[name] for name in ("minimum", "above", "maximum", "below") if name in field}
    if entry.kind is Kind.integer and "above" in found:
        found["minimum"] = found.pop("above") + 1
    if entry.name in ("loss_scale", "update_interval"):
        return bounds(entry)
    return found


@pytest.mark.parametrize("path", ["aio", "pipeline", "activation_checkpointing", "flops_profiler", "expert_parallel"])
def test_a_plain_block_has_the_keys_and_defaults_of_the_table(installed, path):
    unread = {"load_balance_coeff", "_load_balance_coeff_explicit", "expert_w3"}
    theirs = {name: value for name, value in installed["plain"][path].items() if name not in unread}
    ours = {entry.name: plain(entry.default) for entry in block_at(path).entries if isinstance(entry, Key)}
    missing = {name: value for name, value in theirs.items() if ours.get(name, value) != value or name not in ours}
    assert missing == {}
    assert ours.keys() - theirs.keys() <= {"use_reentrant", *unread}


def test_the_autotuner_has_the_keys_and_defaults_of_the_table(installed):
    ours = {entry.name: plain(entry.default) for entry in block_at("autotuning").entries if isinstance(entry, Key)}
    theirs = installed["plain"]["autotuning"]
    assert {name: value for name, value in theirs.items() if name in ours} == ours
    assert theirs.keys() - ours.keys() <= {"start_step", "end_step", "model_info"}


def test_the_top_level_has_the_defaults_of_the_table(installed):
    top = installed["top"]
    simple = [
        entry
        for entry in ROOT.entries
        if isinstance(entry, Key) and entry.removed is None and entry.name in top and entry.name not in BATCH_KEYS
    ]
    assert len(simple) >= 15
    for entry in simple:
        ours = plain(entry.default)
        assert top[entry.name] == (f"torch.{'float32'}" if ours == "fp32" else ours), entry.name


def test_every_constant_that_names_a_key_is_in_the_table(installed):
    """A key DeepSpeed gains in a new release shows up here."""
    constants = installed["constants"]
    named = {name.removesuffix("_DEFAULT") for name in constants if name.endswith("_DEFAULT")}
    every = {name for block in (ROOT, *DEEPSPEED_OPTIMIZERS.values()) for name, _ in walk(block)}
    texts = {constants[name] for name in named if isinstance(constants.get(name), str) and constants[name].isidentifier()}
    assert len(texts) > 50
    assert texts - every == set()


def walk(block: Block):
    for name, entry in block.by_name.items():
        yield name, entry
        if isinstance(entry, Block):
            yield from walk(entry)


def test_removed_keys_are_those_deepspeed_refuses(installed):
    constants = installed["constants"]
    assert {name for name, entry in ROOT.by_name.items() if entry.removed} == set(constants["_REMOVED_TOP_LEVEL_CONFIG_KEYS"])
    zero = block_at("zero_optimization")
    assert {name for name, entry in zero.by_name.items() if entry.removed} == set(constants["_REMOVED_ZERO_CONFIG_KEYS"])


def test_optimizers_and_schedulers_are_those_deepspeed_and_torch_have(installed):
    assert set(DEEPSPEED_OPTIMIZERS) == set(installed["constants"]["DEEPSPEED_OPTIMIZERS"])
    assert set(SCHEDULERS) == set(installed["schedulers"])
    assert set(TORCH_OPTIMIZERS) <= set(installed["torch_optimizers"])
    assert set(TORCH_SCHEDULERS) <= set(installed["torch_schedulers"])
    for name, block in SCHEDULERS.items():
        assert {entry.name for entry in block.entries} == set(installed["schedulers"][name]) - {"optimizer"}, name


def test_releases_of_the_table_are_in_order():
    versions = [Version(release) for release in READ_RELEASES]
    assert versions == sorted(versions)
    for _, entry in walk(ROOT):
        assert {entry.added, entry.removed} <= {None, *READ_RELEASES[1:]}
