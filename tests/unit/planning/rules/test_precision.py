"""Number formats and collectives: what breaks a rule, what it says, and that the fix mends it."""

from __future__ import annotations

from orchestrator.config.enums import AttentionImplementation, Precision
from orchestrator.config.schema import ModelConfig
from tests.unit.planning.configurations import ROOT, cpu_cluster, gpu_cluster
from tests.unit.planning.rules.broken import ERROR, INFO, WARNING, Broken, check, each, pipeline

BF16_LLAMA = str(ROOT / "tests" / "data" / "bf16_llama")
TRAINED_IN_BF16 = ModelConfig(name="llama", config_path=BF16_LLAMA, pretrained=BF16_LLAMA)
FLASH = AttentionImplementation.flash_attention_2

CASES = [
    Broken(
        "fp16-stage",
        ERROR,
        "zero.stage",
        {"precision__dtype": Precision.fp16, "zero__stage": 0},
        ("does not scale the loss",),
        ("zero.stage=1",),
    ),
    Broken(
        "attention-kernel",
        ERROR,
        "model.attention_implementation",
        {"cluster": cpu_cluster(), "model__attention_implementation": FLASH},
        ("CUDA", "CPU is none"),
        ("model.attention_implementation=sdpa",),
    ),
    Broken(
        "attention-kernel",
        ERROR,
        "model.attention_implementation",
        {"precision__dtype": Precision.fp32, "model__attention_implementation": FLASH},
        ("fp16", "precision.dtype is fp32"),
        ("precision.dtype=bf16",),
    ),
    Broken(
        "device-precision",
        ERROR,
        "precision.dtype",
        {"cluster": gpu_cluster(device_name="V100", precisions=[Precision.fp32, Precision.fp16])},
        ("V100", "bf16", "fp32, fp16"),
        ("precision.dtype=fp16",),
    ),
    Broken(
        "stage0-accumulation",
        ERROR,
        "precision.grad_accum_dtype",
        {"zero__stage": 0, "precision__grad_accum_dtype": Precision.fp32},
        ("bf16", "fp32"),
        ("zero.stage=1",),
    ),
    Broken(
        "accumulation-precision",
        WARNING,
        "precision.grad_accum_dtype",
        {"precision__dtype": Precision.fp32, "precision__grad_accum_dtype": Precision.bf16},
        ("fp32", "bf16"),
        ("precision.grad_accum_dtype=fp32",),
    ),
    Broken("pipeline-bf16-accumulation", WARNING, "zero.stage", pipeline(2, zero__stage=0), ("bf16",), ("zero.stage=1",)),
    Broken(
        "initial-loss-scale",
        WARNING,
        "precision.initial_scale_power",
        {"precision__dtype": Precision.fp16, "precision__initial_scale_power": 32},
        ("2^32", "16 steps"),
        ("precision.initial_scale_power=16",),
    ),
    Broken(
        "loss-scale-format",
        INFO,
        "precision.loss_scale",
        {"precision__loss_scale": 128.0},
        ("128", "bf16"),
        ("precision.loss_scale=0",),
    ),
    Broken(
        "predivide-reduce-scatter",
        ERROR,
        "communication.prescale_gradients",
        {"zero__stage": 2, "communication__prescale_gradients": True},
        ("stage 2",),
        ("communication.prescale_gradients=false",),
    ),
    Broken(
        "predivide-reduce-scatter",
        ERROR,
        "communication.gradient_predivide_factor",
        {"zero__stage": 3, "communication__gradient_predivide_factor": 2.0},
        ("2.0", "stage 3"),
        ("communication.gradient_predivide_factor=1",),
    ),
    Broken(
        "communication-precision",
        WARNING,
        "communication.communication_data_type",
        {"communication__communication_data_type": Precision.fp16},
        ("bf16", "fp16"),
        ("communication.communication_data_type=bf16",),
    ),
    Broken(
        "loss-scale-floor",
        ERROR,
        "precision.min_loss_scale",
        {"precision__dtype": Precision.fp16, "precision__initial_scale_power": 4, "precision__min_loss_scale": 32},
        ("32", "2^4"),
        ("precision.min_loss_scale=1",),
    ),
    Broken(
        "bf16-accumulation",
        WARNING,
        "precision.grad_accum_dtype",
        {"precision__grad_accum_dtype": Precision.bf16},
        ("4 micro-batches", "bf16"),
        ("precision.grad_accum_dtype=fp32",),
    ),
    Broken(
        "fp16-range",
        WARNING,
        "precision.dtype",
        {"precision__dtype": Precision.fp16, "model": TRAINED_IN_BF16},
        ("bf16_llama", "bf16"),
        ("precision.dtype=bf16",),
    ),
    Broken(
        "predivide-prescale",
        WARNING,
        "communication.gradient_predivide_factor",
        {
            "zero__reduce_scatter": False,
            "communication__prescale_gradients": True,
            "communication__gradient_predivide_factor": 2.0,
        },
        ("2.0 has no effect",),
        ("communication.gradient_predivide_factor=1",),
    ),
    Broken(
        "communication-precision",
        WARNING,
        "communication.communication_data_type",
        {"precision__dtype": Precision.fp32, "communication__communication_data_type": Precision.bf16},
        ("fp32", "eight significant bits"),
        ("communication.communication_data_type=fp32",),
    ),
]


@each(CASES)
def test_a_broken_rule_says_so_and_its_fix_mends_it(case):
    check(case)
