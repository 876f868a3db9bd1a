"""Reads DeepSpeed JSON files with the installed DeepSpeed and prints, as JSON, what it makes of each.

Run as a program, so that the tests' own process never imports DeepSpeed: ``python read_with_deepspeed.py FILE ...``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
from deepspeed.runtime import config as runtime_config
from deepspeed.runtime.engine import DeepSpeedEngine


def effective(path: Path) -> dict[str, Any]:
    """The values DeepSpeed will use for one file."""
    values = json.loads(path.read_text())
    replicas = values["train_batch_size"] // (values["train_micro_batch_size_per_gpu"] * values["gradient_accumulation_steps"])
    runtime_config.dist.get_rank = lambda *_, **__: 0
    runtime_config.dist.get_world_size = lambda *_, **__: replicas
    config = runtime_config.DeepSpeedConfig(values)
    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine.__dict__.update(_config=config, pipeline_parallelism="pipeline" in values, global_rank=0)
    dtype, accumulation = DeepSpeedEngine.get_data_types(engine)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    zero = config.zero_config
    return {
        "replicas": replicas,
        "zero_stage": int(zero.stage),
        "wrapper": DeepSpeedEngine._do_optimizer_sanity_check(engine, optimizer),
        "dtype": str(dtype),
        "grad_accum_dtype": str(accumulation),
        "communication_data_type": str(config.communication_data_type),
        "gradient_clipping": config.gradient_clipping,
        "prescale_gradients": config.prescale_gradients,
        "gradient_predivide_factor": config.gradient_predivide_factor,
        "optimizer": [config.optimizer_name, config.optimizer_params],
        "dynamic_loss_scale": config.float16_config.enabled and config.float16_config.loss_scale == 0,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "allgather_bucket_size": zero.allgather_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "contiguous_gradients": zero.contiguous_gradients,
        "reduce_scatter": zero.reduce_scatter,
        "round_robin_gradients": zero.round_robin_gradients,
        "sub_group_size": zero.sub_group_size,
        "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
        "stage3_param_persistence_threshold": zero.param_persistence_threshold,
        "stage3_max_live_parameters": zero.max_live_parameters,
        "stage3_max_reuse_distance": zero.max_reuse_distance,
        "pipeline": config.pipeline,
        "offload_optimizer": offload(zero.offload_optimizer),
        "offload_param": offload(zero.offload_param),
    }


def offload(block: Any) -> dict[str, Any] | None:
    """An offload block as plain data."""
    return None if block is None else json.loads(block.model_dump_json())


def main() -> None:
    """Print one object: file name -> effective values."""
    result = {Path(name).stem: effective(Path(name)) for name in sys.argv[1:]}
    sys.stdout.write("\nEFFECTIVE " + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
