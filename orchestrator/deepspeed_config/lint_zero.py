"""ZeRO, its offload and ZeRO++: what DeepSpeed accepts in silence and does not do."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.deepspeed_config.effective import Effective
from orchestrator.deepspeed_config.lint_batch import data_parallel_size
from orchestrator.deepspeed_config.lint_rules import LintContext, check, lint_rule
from orchestrator.findings import Finding, Severity

STAGE3_ONLY = lint_rule("json-stage3-only", "what only stage 3 does is asked of stage 3", Severity.error)
SINGLE_RANK = lint_rule("json-zero-single-rank", "ZeRO has several ranks to shard over", Severity.warning)
NVME_PATH = lint_rule("json-nvme-path", "a block that offloads to NVMe names a folder", Severity.error)
OFFLOAD_KEYS = lint_rule("json-offload-keys", "keys of an offload block are used by its device", Severity.info)
OFFLOAD_RATIO = lint_rule("json-offload-ratio", "a partial offload is one of stage 3", Severity.error)
SUPER_OFFLOAD = lint_rule("json-super-offload", "super_offload goes with stage 3", Severity.error)
QUANTIZED_GRADIENTS = lint_rule("json-quantized-gradients", "quantized gradients are reduced by scattering", Severity.error)
HPZ_WORLD = lint_rule("json-hpz-world", "secondary ZeRO++ groups divide the devices", Severity.error)
HPZ_HOST = lint_rule("json-hpz-host", "a secondary ZeRO++ group is one host", Severity.warning)
HPZ_SMALL = lint_rule("json-hpz-small-parameter", "parameters are larger than a secondary ZeRO++ group", Severity.warning)
GRAD_NORM = lint_rule("json-compute-grad-norm", "the gradient norm is left out only where nothing needs it", Severity.error)
ELASTIC = lint_rule("json-elastic-checkpoint", "elastic checkpoints are not asked of stage 3", Severity.error)
LEGACY = lint_rule("json-legacy-stage1", "the old ZeRO stage 1 is not asked for", Severity.error)
ZENFLOW = lint_rule("json-zenflow", "ZenFlow has the offload and overlap it needs", Severity.error)
SUB_GROUP = lint_rule("json-sub-group-size", "sub-groups hold something", Severity.error)
GATHER = lint_rule("json-gather-on-save", "weights of stage 3 are gathered when a model is saved", Severity.error)

_ZERO = "zero_optimization"
_GATHER_KEY = f"{_ZERO}.stage3_gather_16bit_weights_on_model_save"
_FOR_NVME = {
    "offload_param": ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu"),
    "offload_optimizer": ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write", "fast_init"),
}
_ZEROPP = (
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


@check
def stage3_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Below stage 3 ZeRO++ does nothing, and the ``stage3_`` keys are read by nobody."""
    del context
    stage = effective.zero_stage
    if stage == 3:
        return
    for name in _ZEROPP:
        value = effective.value(f"{_ZERO}.{name}")
        if value not in (False, 0, 1):
            yield _stage3_only(name, value, stage)
        elif value is True:
            yield _stage3_only(name, "true", stage)
    for name in effective.block(_ZERO):
        if name.startswith("stage3_"):
            message = f"it has no effect at stage {stage}"
            yield STAGE3_ONLY(f"{_ZERO}.{name}", message, f"delete it, or set {_ZERO}.stage to 3", Severity.info)


def _stage3_only(name: str, value: object, stage: int) -> Finding:
    message = f"{value} has no effect at stage {stage}, and DeepSpeed does not say so"
    return STAGE3_ONLY(f"{_ZERO}.{name}", message, f"set {_ZERO}.stage to 3, or delete it")


@check
def single_rank_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """A pipeline or tensor parallelism over all devices leaves ZeRO nothing to shard."""
    stage, offloaded = effective.zero_stage, effective.offload_device("offload_optimizer") != "none"
    if stage in (1, 2) and not offloaded and context.num_devices > 1 and data_parallel_size(effective, context) == 1:
        message = (
            f"stage {stage} shards over one rank and saves no memory: {context.num_devices} devices / "
            f"{context.num_devices} of one replica leave one data-parallel rank"
        )
        yield SINGLE_RANK(f"{_ZERO}.stage", message, "add devices, or use fewer for one replica")


@check
def offload_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """The offload blocks by themselves; the planner checks them against the stage."""
    del context
    for name, keys in _FOR_NVME.items():
        field, device = f"{_ZERO}.{name}", effective.offload_device(name)
        if device == "nvme" and not effective.value(f"{field}.nvme_path"):
            message = "the device is nvme, and there is no path; DeepSpeed dies on it when it starts"
            yield NVME_PATH(f"{field}.nvme_path", message, "name a folder on a local NVMe disk of every host")
        elif device != "nvme":
            for key in effective.block(field).keys() & set(keys):
                message = f"it has no effect: the device is {device}, not nvme"
                yield OFFLOAD_KEYS(f"{field}.{key}", message, "delete it, or set the device to nvme")
    stage, optimizer = effective.zero_stage, f"{_ZERO}.offload_optimizer"
    if effective.value(f"{optimizer}.super_offload") and stage != 3:
        yield SUPER_OFFLOAD(f"{optimizer}.super_offload", f"it needs stage 3, and the stage is {stage}", "delete it")
    ratio = effective.value(f"{optimizer}.ratio")
    if ratio < 1 and stage != 3:
        message = f"{ratio} needs stage 3, and the stage is {stage}; DeepSpeed refuses it"
        yield OFFLOAD_RATIO(f"{optimizer}.ratio", message, f"write 1, or set {_ZERO}.stage to 3")


@check
def zeropp_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """ZeRO++ at stage 3."""
    if effective.zero_stage != 3:
        return
    if effective.value(f"{_ZERO}.zero_quantized_gradients") and not effective.value(f"{_ZERO}.reduce_scatter"):
        message = "quantized gradients need reduce_scatter, and it is false"
        yield QUANTIZED_GRADIENTS(f"{_ZERO}.zero_quantized_gradients", message, f"set {_ZERO}.reduce_scatter to true")
    size, field = effective.value(f"{_ZERO}.zero_hpz_partition_size"), f"{_ZERO}.zero_hpz_partition_size"
    if size <= 1:
        return
    world = context.num_devices
    if world % min(size, world):
        yield HPZ_WORLD(field, f"groups of {size} do not divide {world} devices", f"set it to {context.devices_per_host}")
    elif size != context.devices_per_host and world > context.devices_per_host:
        message = f"groups of {size} on hosts of {context.devices_per_host} devices: gathers cross hosts or leave links unused"
        yield HPZ_HOST(field, message, f"set it to {context.devices_per_host}")
    small = {name: count for name, count in context.smallest_parameters.items() if count <= 2 * size}
    if small:
        listed = ", ".join(f"{name} ({count})" for name, count in list(small.items())[:3])
        message = f"groups of {size} leave less than two elements a rank of {listed}"
        yield HPZ_SMALL(field, message, "use a smaller group")


@check
def optimizer_path_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """Keys that switch off a part of the optimizer step, or ask for one that is gone."""
    del context
    stage = effective.zero_stage
    if not effective.value(f"{_ZERO}.compute_grad_norm"):
        against = [
            (f"stage {stage}: it works at 1 and 2", stage not in (1, 2)),
            ("gradient_clipping above 0", effective.value("gradient_clipping") > 0),
            ("an offloaded optimizer", effective.offload_device("offload_optimizer") != "none"),
            ("ZenFlow", effective.given(f"{_ZERO}.zenflow")),
        ]
        for name, holds in against:
            if holds:
                yield GRAD_NORM(f"{_ZERO}.compute_grad_norm", f"false does not go with {name}", "delete it")
    if effective.value(f"{_ZERO}.elastic_checkpoint") and stage == 3:
        message = "stage 3 cannot save or load elastic checkpoints: it fails at the first save"
        yield ELASTIC(f"{_ZERO}.elastic_checkpoint", message, "delete it and use universal checkpoints")
    if effective.value(f"{_ZERO}.legacy_stage1"):
        yield LEGACY(f"{_ZERO}.legacy_stage1", "the old stage 1 is gone, and the engine raises", "delete it")
    if effective.value(f"{_ZERO}.sub_group_size") == 0 and stage == 3:
        message = "0 is accepted, and no sub-group of that size can be made"
        yield SUB_GROUP(f"{_ZERO}.sub_group_size", message, "write 1000000000")


@check
def zenflow_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """ZenFlow works on an optimizer in host memory while gradients are reduced."""
    del context
    if not effective.given(f"{_ZERO}.zenflow"):
        return
    if effective.offload_device("offload_optimizer") != "cpu":
        message = "it needs the optimizer in host memory"
        yield ZENFLOW(f"{_ZERO}.zenflow", message, 'write "offload_optimizer": {"device": "cpu"}')
    overlaps = effective.value(f"{_ZERO}.overlap_comm")
    if not (effective.zero_stage == 3 if overlaps is None else overlaps):
        yield ZENFLOW(f"{_ZERO}.zenflow", "it needs overlap_comm", f"set {_ZERO}.overlap_comm to true")


@check
def gather_findings(effective: Effective, context: LintContext) -> Iterator[Finding]:
    """At stage 3 ``save_16bit_model`` writes nothing unless it may gather the shards."""
    if effective.zero_stage != 3 or effective.value(_GATHER_KEY):
        return
    message = "the shards of stage 3 are not gathered when a model is saved: a Hugging Face folder would hold empty weights"
    exports = bool((context.hf_arguments or {}).get("push_to_hub"))
    severity = Severity.error if exports else Severity.info
    yield GATHER(_GATHER_KEY, message, "set it to true, or convert a checkpoint with zero_to_fp32.py", severity)
