"""DeepSpeed's pipeline engine with the schedules that train here, and a record of what it did and how long it worked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed
from deepspeed.runtime.pipe import schedule as instructions
from deepspeed.runtime.pipe.dualpipev import DualPipeVEngine
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from orchestrator.config.enums import PipelineSchedule
from orchestrator.worker.bubble import StageTimes, stage_times

Executed = tuple[str, int, int]
"""Forward or backward pass, buffer, phase (0 but for the second half of a folded pipeline)."""


class GPipeSchedule(instructions.PipeSchedule):
    """All forward passes, then all backward passes (Huang et al., "GPipe", 2019); every micro-batch has its own buffer."""

    def num_pipe_buffers(self) -> int:
        """Buffers of this stage."""
        return int(self.micro_batches)

    def steps(self) -> Iterator[list[Any]]:
        """DeepSpeed's instructions, step by step."""
        first, last = self.is_first_stage, self.is_last_stage
        for buffer in range(self.micro_batches):
            step = [] if first else [instructions.RecvActivation(buffer)]
            if first or last:
                step.append(instructions.LoadMicroBatch(buffer))
            step.append(instructions.ForwardPass(buffer))
            yield step if last else [*step, instructions.SendActivation(buffer)]
        for buffer in range(self.micro_batches):
            step = [] if last else [instructions.RecvGrad(buffer)]
            step.append(instructions.BackwardPass(buffer))
            yield step if first else [*step, instructions.SendGrad(buffer)]
        yield [instructions.ReduceTiedGrads(), instructions.ReduceGrads(), instructions.OptimizerStep()]


class RecordedSchedule:
    """A schedule that notes each pass as the engine comes to it, and times it: the engine asks for more when it is done."""

    def __init__(self, schedule: Any, executed: list[Executed], times: StageTimes) -> None:
        self._schedule = schedule
        self._executed = executed
        self._times = times
        executed.clear()

    def num_pipe_buffers(self) -> int:
        """Buffers of this stage."""
        return int(self._schedule.num_pipe_buffers())

    def __iter__(self) -> Iterator[Iterator[Any]]:
        self._times.begin()
        return (self._recorded(step) for step in self._schedule)

    def _recorded(self, step: Any) -> Iterator[Any]:
        for command in step:
            if not isinstance(command, instructions.ForwardPass | instructions.BackwardPass):
                yield command
                continue
            kind = "forward" if isinstance(command, instructions.ForwardPass) else "backward"
            self._executed.append((kind, command.kwargs["buffer_id"], command.kwargs.get("phase", 0)))
            with self._times.working():
                yield command


class _Recorded(PipelineEngine):
    """``executed`` holds the passes of the last step in their order, ``stage_times`` how long they took."""

    executed: list[Executed]
    stage_times: StageTimes

    def _train_schedule(self) -> RecordedSchedule:
        if not hasattr(self, "executed"):
            self.executed, self.stage_times = [], stage_times()
        return RecordedSchedule(self._own_schedule(), self.executed, self.stage_times)

    def _own_schedule(self) -> Any:
        return super()._train_schedule()


class OneForwardOneBackwardEngine(_Recorded):
    """DeepSpeed's own engine, which lets go of the logits once they are used, and finds the gradients of tied weights.

    DeepSpeed's last stage keeps the logits until the buffer is used again, over an evaluation and into the next step.
    """

    def _exec_forward_pass(self, buffer_id: int) -> None:
        super()._exec_forward_pass(buffer_id)
        if not torch.is_grad_enabled():
            self._drop_logits(buffer_id)

    def _exec_backward_pass(self, buffer_id: int) -> None:
        super()._exec_backward_pass(buffer_id)
        self._drop_logits(buffer_id)

    def _drop_logits(self, buffer_id: int) -> None:
        if self.is_last_stage():
            self.pipe_buffers["outputs"][buffer_id] = None

    def _exec_reduce_tied_grads(self) -> None:
        """DeepSpeed looks at ``grad``, where nothing is if fp16 gradients are accumulated in fp32: the copies would part."""
        if not isinstance(self.optimizer, DeepSpeedZeroOptimizer):
            super()._exec_reduce_tied_grads()
            return
        for weight, group in self.module.get_tied_weights_and_groups():
            gradient = self.optimizer.get_gradient_for_reduction(weight) if weight.requires_grad else None
            if gradient is not None:
                torch.distributed.all_reduce(gradient, group=group)

    _INSTRUCTION_MAP: ClassVar[dict[Any, Any]] = {
        **PipelineEngine._INSTRUCTION_MAP,
        instructions.ForwardPass: _exec_forward_pass,
        instructions.BackwardPass: _exec_backward_pass,
        instructions.ReduceTiedGrads: _exec_reduce_tied_grads,
    }


class GPipeEngine(OneForwardOneBackwardEngine):
    """All forward passes before the first backward pass. DeepSpeed keeps one loss, here each micro-batch has its own."""

    def _own_schedule(self) -> GPipeSchedule:
        self._losses: dict[int, Any] = {}
        return GPipeSchedule(micro_batches=self.micro_batches, stages=self.num_stages, stage_id=self.stage_id)

    def _exec_forward_pass(self, buffer_id: int) -> None:
        super()._exec_forward_pass(buffer_id)
        if torch.is_grad_enabled() and self.is_last_stage():
            self._losses[buffer_id] = self.loss

    def _exec_backward_pass(self, buffer_id: int) -> None:
        if self.is_last_stage():
            self.loss = self._losses.pop(buffer_id)
        super()._exec_backward_pass(buffer_id)

    _INSTRUCTION_MAP: ClassVar[dict[Any, Any]] = {
        **OneForwardOneBackwardEngine._INSTRUCTION_MAP,
        instructions.ForwardPass: _exec_forward_pass,
        instructions.BackwardPass: _exec_backward_pass,
    }


class DualPipeEngine(_Recorded, DualPipeVEngine):
    """DeepSpeed's engine for a folded pipeline."""


ENGINES: dict[PipelineSchedule, type[PipelineEngine]] = {
    PipelineSchedule.one_f_one_b: OneForwardOneBackwardEngine,
    PipelineSchedule.gpipe: GPipeEngine,
    PipelineSchedule.dual_pipe_v: DualPipeEngine,
}
"""The engine of each schedule."""
