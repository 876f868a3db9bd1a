"""``validate``: does this run make sense, and does it fit, on every rank?"""

from __future__ import annotations

from orchestrator.commands.planned import fixes_for, plan_run
from orchestrator.commands.result import OK, REFUSED, CommandResult
from orchestrator.config.schema import RunConfig
from orchestrator.planning.plan import Plan
from orchestrator.report import text

HELP = """Plan the run without starting anything: layout, memory on every rank, every rule. No torch, no GPU needed.

Examples:
  orchestrator validate model=llama_3_8b cluster=dgx_h100 zero=stage3
  orchestrator validate experiment=llama_2_70b_64_hosts cluster.hosts=16
  orchestrator validate model=hf model.config_path=/models/my-llama cluster=l40s output=json
  orchestrator validate deepspeed_json=ds_config.json world_size=8 model=llama_3_8b
  orchestrator validate model=llama_3_1b zero=stage2 estimate=exact
  orchestrator validate -m model=llama_3_1b cluster=dgx_h100 zero=stage1,stage2,stage3"""


def run(config: RunConfig) -> CommandResult:
    """Plan ``config`` and report."""
    return report(config, plan_run(config))


def report(config: RunConfig, plan: Plan) -> CommandResult:
    """The report of a plan, whatever its verdict."""
    if not plan.fits:
        return refusal(config, plan)
    return CommandResult(exit_code=OK, payload=plan.to_dict(), text=text.plan_report(plan))


def refusal(config: RunConfig, plan: Plan) -> CommandResult:
    """The report of a plan that cannot run, with the changes that would make it fit."""
    fixes = fixes_for(config, plan)
    payload = {**plan.to_dict(), "fixes": [fix.to_dict() for fix in fixes]}
    return CommandResult(exit_code=REFUSED, payload=payload, text=[*text.plan_report(plan), *text.fixes_report(plan, fixes)])
