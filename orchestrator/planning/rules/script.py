"""Rules about a training script of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from orchestrator.config.enums import LrSchedule
from orchestrator.deepspeed_config.script_arguments import PLACEHOLDERS, TRAINER_ARGUMENTS, unknown_names
from orchestrator.findings import Finding, Severity, info, warning
from orchestrator.planning.rules.registry import Rule, RuleContext, rule


def is_about_our_training(rule: Rule) -> bool:
    """Whether a rule speaks of what a script of the user's own decides by itself: its data and its evaluations."""
    return rule.subject in ("data", "evaluation") and rule.name != "sequence-length"


@rule("script-parallelism", "a script of your own divides the model as the plan does", Severity.warning)
def script_parallelism(context: RuleContext) -> Iterator[Finding]:
    """Our tensor and pipeline parallelism is in our models. Without it DeepSpeed takes all ranks for replicas."""
    parallelism = context.config.parallelism
    if context.config.training.script is None:
        return
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = getattr(parallelism, name)
        if size > 1:
            yield warning(
                "script-parallelism",
                f"parallelism.{name}",
                f"{size} is true only if training.script divides the model itself and tells DeepSpeed so "
                "(mpu, PipelineModule); else the batch size of the JSON is refused",
                f"set parallelism.{name}=1, or divide it there: {{{name}}} among the arguments is the number",
            )


@rule("script-placeholder", "names in braces stand for something", Severity.warning)
def script_placeholder(context: RuleContext) -> Iterator[Finding]:
    """Other braces are the script's own."""
    training = context.config.training
    if training.script is None:
        return
    known = (*PLACEHOLDERS, TRAINER_ARGUMENTS)
    for name in unknown_names(training.script_arguments):
        if name == TRAINER_ARGUMENTS:
            message, fix = f"{{{name}}} becomes several arguments and stays as it is inside of one", "write it alone"
        else:
            nearest = get_close_matches(name, known, n=1)
            message = f"{{{name}}} stands for nothing, and the script gets it as it is"
            fix = f"did you mean {{{nearest[0]}}}?" if nearest else f"known are {', '.join(known)}"
        yield warning("script-placeholder", "training.script_arguments", message, fix)


@rule("script-arguments", "arguments are for a script", Severity.warning)
def script_arguments(context: RuleContext) -> Iterator[Finding]:
    """Our own training takes none."""
    training = context.config.training
    if training.script is None and training.script_arguments:
        message = f"{len(training.script_arguments)} argument(s) have no effect without training.script"
        yield warning("script-arguments", "training.script_arguments", message, "set training.script=FILE, or leave them out")


@rule("script-decides", "what a script of your own decides is said", Severity.info)
def script_decides(context: RuleContext) -> Iterator[Finding]:
    """The plan is as true as its description of the model. Options about our own training do nothing."""
    config = context.config
    if config.training.script is None:
        return
    message = (
        f"the script decides what is trained; the plan is that of model.name={config.model.name} with "
        f"data.sequence_length={config.data.sequence_length}, and data, evaluation and checkpoint options do nothing"
    )
    yield info("script-decides", "training.script", message, "describe the script's model: model=, data.sequence_length=")
    if config.lr_scheduler.type is not LrSchedule.constant or config.lr_scheduler.warmup_steps:
        message = f"{config.lr_scheduler.type.value} is not in the DeepSpeed JSON, which states the peak only"
        fix = (
            "give lr_scheduler=orchestrator.script.lr_scheduler to deepspeed.initialize, {trainer_arguments} to a Trainer, "
            "or make a schedule in the script"
        )
        yield info("script-decides", "lr_scheduler.type", message, fix)
