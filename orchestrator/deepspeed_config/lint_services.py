"""Monitors, pipeline, activation checkpointing, NVMe threads and data sampling."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.config.enums import Accelerator
from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.lint_rules import LintContext, check, lint_rule
from orchestrator.findings import Finding, Severity

MONITOR = lint_rule("json-monitor", "DeepSpeed's own monitors do not record beside the run's tracking", Severity.warning)
AIO_UNUSED = lint_rule("json-aio", "asynchronous IO has something to move", Severity.info)
GDS = lint_rule("json-aio-gds", "GPUDirect storage has a GPU", Severity.error)
PIPELINE_UNUSED = lint_rule("json-pipeline", "the pipeline block has a pipeline", Severity.info)
RECOMPUTE = lint_rule("json-activation-checkpointing", "the block is used by a model that recomputes", Severity.error)
AUTOTUNING = lint_rule("json-autotuning", "the run trains rather than tunes", Severity.warning)
AUTOTUNING_PATH = lint_rule("json-autotuning-path", "the autotuner has folders to write to", Severity.error)
DATA_SAMPLING = lint_rule("json-data-efficiency", "data sampling that is on has what it needs", Severity.error)
EXPERT_BALANCE = lint_rule("json-expert-parallel", "expert parallelism asks for what this DeepSpeed has", Severity.error)

_MONITORS = {
    "wandb": "tracking.wandb",
    "comet": None,
    "tensorboard": "tracking.tensorboard=true",
    "csv_monitor": "tracking.csv=true",
}
_CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"
_DYNAMIC = "data_efficiency.data_sampling.dynamic_batching"


@check
def monitor_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """DeepSpeed's monitors know neither a run id nor the configuration, and count samples where trackers count steps."""
    del context
    for name, option in _MONITORS.items():
        if effective.value(f"{name}.enabled"):
            message = "DeepSpeed would record the run itself, without an id or the configuration: each restart is a new record"
            instead = "" if option is None else f" ({option} of launch)"
            yield MONITOR(f"{name}.enabled", message, f"switch it off and track in the training script{instead}")


@check
def unused_block_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Blocks that nothing reads in this run."""
    devices = [effective.offload_device(name) for name in ("offload_optimizer", "offload_param")]
    if effective.block("aio") and "nvme" not in devices:
        yield AIO_UNUSED("aio", "it has no effect: nothing is offloaded to nvme", "delete it")
    if effective.value("aio.use_gds") and context.accelerator is not Accelerator.cuda:
        yield GDS("aio.use_gds", "GPUDirect storage needs CUDA devices, and there are none", "write false")
    if effective.block("pipeline") and context.pipeline_parallel_size == 1:
        message = "it is read by the pipeline engine only, and the planned run has one stage"
        yield PIPELINE_UNUSED("pipeline", message, "delete it, or name the stages: parallelism.pipeline_parallel_size=N")
    if effective.value("autotuning.enabled"):
        yield AUTOTUNING("autotuning.enabled", "the launcher would start tuning jobs instead of the run", "set it to false")


@check
def recompute_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """The block sets how DeepSpeed's checkpoint function works, and calls it nowhere."""
    del context
    block = "activation_checkpointing"
    if not effective.block(block):
        return
    message = "it only sets up DeepSpeed's checkpoint function: activations are recomputed where the model calls that"
    yield RECOMPUTE(block, message, "nothing, if your model calls deepspeed.checkpointing.checkpoint", Severity.info)
    if effective.value(f"{block}.contiguous_memory_optimization"):
        for needed in ("partition_activations", "number_checkpoints"):
            if not effective.value(f"{block}.{needed}"):
                field = f"{block}.contiguous_memory_optimization"
                yield RECOMPUTE(field, f"it needs {needed}", f"set {block}.{needed}")


@check
def data_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """What DeepSpeed asserts of curriculum learning, dynamic batching and the autotuner's folders."""
    del context
    if effective.value(f"{_CURRICULUM}.enabled") and "curriculum_metrics" not in effective.block(_CURRICULUM):
        yield DATA_SAMPLING(_CURRICULUM, "it is on without curriculum_metrics", "name the metrics, or switch it off")
    if effective.value(f"{_DYNAMIC}.enabled") and not effective.given(f"{_DYNAMIC}.max_tokens"):
        yield DATA_SAMPLING(_DYNAMIC, "it is on without max_tokens", "set max_tokens, or switch it off")
    for name in ("results_dir", "exps_dir"):
        if effective.value(f"autotuning.{name}") == "":
            yield AUTOTUNING_PATH(f"autotuning.{name}", "it is empty, and DeepSpeed asserts a folder", "name one, or delete it")
    if effective.given("expert_parallel.load_balance_coeff"):
        message = "this DeepSpeed refuses any value of it"
        yield EXPERT_BALANCE("expert_parallel.load_balance_coeff", message, "delete it, or write null")
