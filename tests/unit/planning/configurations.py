"""Run configurations for tests: a small legal one, and dotted changes to it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from orchestrator.config.enums import Accelerator, DataSource, Family, Precision
from orchestrator.config.schema import ClusterConfig, ModelConfig, RunConfig
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.units import GIB

ROOT = Path(__file__).parents[3]
LLAMA_2_70B = ModelConfig(
    name="llama_2_70b",
    family=Family.llama,
    vocab_size=32000,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    max_position_embeddings=4096,
)


def run_config(**changes: Any) -> RunConfig:
    """A small Llama on one host with 8 GPUs; ``zero__stage=3`` changes ``zero.stage``."""
    config = RunConfig(
        run_dir="/runs/test",
        model=ModelConfig(
            name="small",
            family=Family.llama,
            vocab_size=32000,
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=16,
            num_attention_heads=16,
            num_key_value_heads=8,
            max_position_embeddings=2048,
        ),
        cluster=gpu_cluster(),
    )
    config.data.source = DataSource.synthetic
    config.training.train_micro_batch_size_per_gpu = 2
    config.training.gradient_accumulation_steps = 4
    return changed(config, **changes)


def changed(config: RunConfig, **changes: Any) -> RunConfig:
    """A copy of ``config`` with ``group__field`` set."""
    copy = deepcopy(config)
    for name, value in changes.items():
        target: Any = copy
        *groups, field = name.split("__")
        for group in groups:
            target = getattr(target, group)
        assert hasattr(target, field), name
        setattr(target, field, value)
    return copy


def gpu_cluster(**fields: Any) -> ClusterConfig:
    """One host with 8 GPUs of 80 GB."""
    values: dict[str, Any] = {
        "name": "gpus",
        "devices_per_host": 8,
        "accelerator": Accelerator.cuda,
        "device_name": "GPU-80GB",
        "device_memory_gib": 79.14,
        "device_context_gib": 1.8,
        "host_memory_gib": 1000.0,
        "precisions": [Precision.fp32, Precision.bf16, Precision.fp16],
    }
    return ClusterConfig(**(values | fields))


def cpu_cluster(**fields: Any) -> ClusterConfig:
    """One host with two processes on its CPU; memory is the machine's."""
    values: dict[str, Any] = {
        "name": "cpu",
        "devices_per_host": 2,
        "accelerator": Accelerator.cpu,
        "device_name": "CPU",
        "device_context_gib": 0.5,
        "precisions": [Precision.fp32, Precision.bf16],
    }
    return ClusterConfig(**(values | fields))


def preset(group: str, name: str, schema: type) -> Any:
    """A file of ``conf/`` as its dataclass."""
    loaded = OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml")
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), loaded))


def overridden(config: RunConfig, overrides: tuple[str, ...]) -> RunConfig:
    """``config`` with overrides as a user types them."""
    merged = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(list(overrides)))
    result = OmegaConf.to_object(merged)
    assert isinstance(result, RunConfig)
    return result


def plan_of(config: RunConfig, **arguments: Any) -> Plan:
    """The plan of ``config`` on a machine with 64 GiB."""
    return make_plan(config, **({"hosts": None, "machine_memory_bytes": 64 * GIB} | arguments))


def errors_of(plan: Plan) -> dict[str, str]:
    """Field -> rule of the findings that refuse the run."""
    return {finding.field: finding.rule for finding in plan.findings if finding.severity.value == "error"}
