"""What one optimizer step is, as far as its time depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.enums import PipelineSchedule
from orchestrator.deepspeed_config.settings import DeepSpeedSettings
from orchestrator.planning.cluster_spec import ClusterSpec
from orchestrator.planning.memory.activations import Pass
from orchestrator.planning.memory.estimate import Estimator
from orchestrator.planning.model_spec import ModelSpec
from orchestrator.planning.parameters import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """What one optimizer step does, whatever the partition. In arrays of layouts the sizes are integer arrays."""

    spec: ModelSpec
    cluster: ClusterSpec
    settings: DeepSpeedSettings
    passed: Pass
    """One pass of one rank: micro-batch, sequence length, tensor-parallel size, recomputation, kernels."""
    pipeline_parallel_size: int
    data_parallel_size: Size
    micro_batches: Size
    """Of one replica: the gradient accumulation steps."""
    schedule: PipelineSchedule = PipelineSchedule.one_f_one_b

    @property
    def num_devices(self) -> Size:
        """The world size."""
        return self.passed.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def tokens(self) -> Size:
        """Tokens of the step over all replicas."""
        return self.passed.micro_batch * self.passed.sequence_length * self.micro_batches * self.data_parallel_size


def training_step(estimator: Estimator) -> TrainingStep:
    """The step of a run whose memory ``estimator`` knows."""
    layout = estimator.layout
    return TrainingStep(
        spec=estimator.spec,
        cluster=estimator.cluster,
        settings=estimator.settings,
        passed=estimator.passed,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=layout.data_parallel_size,
        micro_batches=layout.gradient_accumulation_steps,
        schedule=estimator.config.parallelism.schedule,
    )
