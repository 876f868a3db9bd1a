"""A callback of the Hugging Face Trainer that reports to the launch, and saves and stops when the run is asked to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from orchestrator import script
from orchestrator.worker.script_launch import entry_of_log


class TrainerReport(TrainerCallback):
    """``Trainer(..., callbacks=[script.TrainerReport()])``: losses and evaluations, checkpoints, and the end on request."""

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Report what the Trainer logs."""
        kind, values = entry_of_log(logs or {})
        if values:
            report = script.report_evaluation if kind == "evaluate" else script.report
            report(step=state.global_step, **values)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """Name the checkpoint that is complete."""
        script.report_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:  # noqa: ARG002
        """Save and stop when the run is asked to."""
        if script.should_stop():
            control.should_save = True
            control.should_training_stop = True
        return control
