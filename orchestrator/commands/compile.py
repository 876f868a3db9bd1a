"""``compile``: the DeepSpeed configuration of this run, every value written out."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from orchestrator.commands.planned import plan_run
from orchestrator.commands.result import OK, CommandResult
from orchestrator.commands.validate import refusal
from orchestrator.config.schema import RunConfig
from orchestrator.deepspeed_config.compile import compile_config
from orchestrator.planning.plan import Plan

HELP = """Print the DeepSpeed JSON of the run on standard output. A run that cannot start is refused as by validate.

Examples:
  orchestrator compile model=llama_3_8b cluster=dgx_h100 zero=stage3 > ds_config.json
  orchestrator compile offload=optimizer_cpu zero=stage2
  orchestrator compile deepspeed_json=old.json world_size=8 model=llama_3_8b > new.json"""


def run(config: RunConfig) -> CommandResult:
    """Compile ``config``, if its plan can run."""
    plan = plan_run(config)
    if not plan.fits:
        return refusal(config, plan)
    ds_config = compiled(config, plan)
    return CommandResult(exit_code=OK, payload=ds_config, text=[Text(json.dumps(ds_config, indent=2))])


def compiled(config: RunConfig, plan: Plan, *, nvme_directory: str | None = None) -> dict[str, Any]:
    """The DeepSpeed configuration of a plan without errors; ``nvme_directory`` is a run's own folder on the NVMe disk."""
    assert plan.layout is not None
    return compile_config(
        config,
        plan.settings,
        train_batch_size=plan.layout.train_batch_size,
        train_micro_batch_size_per_gpu=plan.layout.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=plan.layout.gradient_accumulation_steps,
        nvme_directory=nvme_directory,
    )
