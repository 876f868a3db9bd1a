"""Configurations whose compiled DeepSpeed JSON is kept in ``tests/golden/deepspeed``.

After a change that is meant to alter them, write them anew with ``python -m tests.unit.deepspeed_config.golden`` and read the
difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.config.enums import OffloadDevice, OptimizerType, PipelineSchedule, Precision, RecomputePolicy
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.compile import compile_config
from orchestrator.deepspeed_config.settings import resolve_settings
from orchestrator.planning.layout import layout_from_config
from tests.unit.planning.configurations import cpu_cluster, run_config

FOLDER = Path(__file__).parents[2] / "golden" / "deepspeed"

_CPU = {"cluster": cpu_cluster()}
_NVME = {
    "zero__stage": 3,
    "offload__optimizer_device": OffloadDevice.nvme,
    "offload__param_device": OffloadDevice.nvme,
    "offload__nvme_path": "/nvme",
}

CASES: dict[str, dict[str, Any]] = {
    "stage0_fp32_cpu": {"zero__stage": 0, "precision__dtype": Precision.fp32, **_CPU},
    "stage0_fp32_cuda": {"zero__stage": 0, "precision__dtype": Precision.fp32},
    "stage0_bf16_cuda": {"zero__stage": 0},
    "stage0_bf16_pipeline_cuda": {"zero__stage": 0, "parallelism__pipeline_parallel_size": 2},
    "stage0_fp16_cuda": {"zero__stage": 0, "precision__dtype": Precision.fp16},
    "stage1_bf16_cpu": {**_CPU},
    "stage1_bf16_cuda": {},
    "stage1_bf16_in_bf16_cuda": {"precision__grad_accum_dtype": Precision.bf16},
    "stage1_bf16_pipeline_cuda": {
        "parallelism__pipeline_parallel_size": 2,
        "activation_checkpointing__policy": RecomputePolicy.full,
    },
    "stage1_bf16_tensor_pipeline_cuda": {
        "parallelism__tensor_parallel_size": 2,
        "parallelism__pipeline_parallel_size": 2,
    },
    "stage1_bf16_sequence_pipeline_cuda": {
        "parallelism__tensor_parallel_size": 2,
        "parallelism__pipeline_parallel_size": 2,
        "parallelism__sequence_parallel": True,
    },
    "stage1_bf16_dual_pipe_v_cuda": {
        "parallelism__tensor_parallel_size": 2,
        "parallelism__pipeline_parallel_size": 2,
        "parallelism__schedule": PipelineSchedule.dual_pipe_v,
    },
    "stage1_fp16_cuda": {"precision__dtype": Precision.fp16, "training__gradient_clipping": 0.0},
    "stage1_offload_cpu_cuda": {"offload__optimizer_device": OffloadDevice.cpu},
    "stage2_bf16_cuda": {"zero__stage": 2, "zero__overlap_comm": True},
    "stage2_fp16_static_scale_cuda": {"zero__stage": 2, "precision__dtype": Precision.fp16, "precision__loss_scale": 128.0},
    "stage2_fp32_cpu": {"zero__stage": 2, "precision__dtype": Precision.fp32, **_CPU},
    "stage2_offload_cpu_cpu": {"zero__stage": 2, "offload__optimizer_device": OffloadDevice.cpu, **_CPU},
    "stage3_bf16_cuda": {"zero__stage": 3, "activation_checkpointing__policy": RecomputePolicy.full},
    "stage3_fp32_cpu": {"zero__stage": 3, "precision__dtype": Precision.fp32, **_CPU},
    "stage3_offload_cpu_cuda": {
        "zero__stage": 3,
        "offload__optimizer_device": OffloadDevice.cpu,
        "offload__param_device": OffloadDevice.cpu,
        "offload__pin_memory": False,
    },
    "stage3_offload_ratio_cuda": {
        "zero__stage": 3,
        "zero__sub_group_size": 10_000_000,
        "offload__optimizer_device": OffloadDevice.cpu,
        "offload__optimizer_ratio": 0.4,
    },
    "stage3_offload_nvme_cuda": _NVME,
    "stage3_offload_nvme_cpu": {**_NVME, **_CPU},
    "stage1_adam_cpu": {"optimizer__type": OptimizerType.Adam, **_CPU},
    "stage3_lion_cuda": {"zero__stage": 3, "optimizer__type": OptimizerType.Lion},
    "stage2_sgd_cuda": {"zero__stage": 2, "optimizer__type": OptimizerType.SGD},
    "stage2_adagrad_offload_cpu_cuda": {
        "zero__stage": 2,
        "optimizer__type": OptimizerType.Adagrad,
        "offload__optimizer_device": OffloadDevice.cpu,
    },
    "stage3_muon_cpu": {
        "zero__stage": 3,
        "zero__reduce_scatter": False,
        "optimizer__type": OptimizerType.Muon,
        "optimizer__adam_lr": 1e-3,
        **_CPU,
    },
}


def configuration(name: str) -> RunConfig:
    """The run configuration of a case."""
    return run_config(**CASES[name])


def compiled(name: str) -> dict[str, Any]:
    """What the case compiles to now."""
    config = configuration(name)
    layout, findings = layout_from_config(config, config.cluster.hosts * config.cluster.devices_per_host)
    assert layout is not None, findings
    return compile_config(
        config,
        resolve_settings(config),
        train_batch_size=layout.train_batch_size,
        train_micro_batch_size_per_gpu=layout.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=layout.gradient_accumulation_steps,
    )


def as_text(compiled_config: dict[str, Any]) -> str:
    """The text of a golden file."""
    return json.dumps(compiled_config, indent=2) + "\n"


def main() -> None:
    """Write every golden file anew, and remove those without a case."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name in CASES:
        (FOLDER / f"{name}.json").write_text(as_text(compiled(name)))


if __name__ == "__main__":
    main()
