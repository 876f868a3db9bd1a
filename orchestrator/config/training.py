"""Options of the training itself: its batches and length, its evaluations, its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True)
class ProfileConfig:
    """What of a training is looked at closely; the files lie in the attempt's ``profile`` folder."""

    steps: list[int] = field(default_factory=list)
    """Optimizer steps to record, counted from 1; empty = none."""
    ranks: list[int] = field(default_factory=lambda: [0])
    """Ranks that record."""
    trace: bool = True
    """Record a PyTorch trace: the time of each operation, for Perfetto or chrome://tracing."""
    memory: bool = False
    """Record the allocations: on CUDA a memory snapshot for pytorch.org/memory_viz, elsewhere in the trace."""


@dataclass(kw_only=True, slots=True)
class TrainingConfig:
    """Batch sizes and length of the run. train = micro x accumulation x data-parallel size; any two give the third."""

    train_batch_size: int | None = None
    """Sequences of one optimizer step over all ranks."""
    train_micro_batch_size_per_gpu: int | None = None
    """Sequences of one forward and backward pass of one rank."""
    gradient_accumulation_steps: int | None = None
    """Passes of one rank before an optimizer step."""
    max_steps: int = 100
    """Optimizer steps of the whole run."""
    gradient_clipping: float = 1.0
    """Largest global gradient norm; 0 = off."""
    label_smoothing: float = 0.0
    """Share of the target's probability that is spread over the vocabulary, 0 to below 1; held-out losses are not smoothed."""
    freeze: list[str] = field(default_factory=list)
    """Regular expressions; a parameter in whose name one is found is not trained: ``"training.freeze=['layers\\.0\\.']"``."""
    evaluate_at_start: bool = False
    """Evaluate before the first step of the run as well."""
    evaluate_every: int = 0
    """Optimizer steps between evaluations on the held-out part and the sets of data.evaluation; 0 = only at the end."""
    evaluate_sequences: int = 256
    """Sequences of each held-out set that one evaluation measures, at most."""
    log_every: int = 1
    """Optimizer steps between two entries of the metrics."""
    script: str | None = None
    """Your own training script, started on every rank in place of ours (``train.py``)."""
    script_arguments: list[str] = field(default_factory=list)
    """Arguments of the script. ``{ds_config}``, ``{output_dir}``, ``{max_steps}``, ... become what they name, and
    ``{trainer_arguments}`` all that a Hugging Face Trainer needs to agree with the JSON."""
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    """Traces of chosen steps."""


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Saving and resuming."""

    save_every: int = 0
    """Optimizer steps between checkpoints; 0 = none before the end."""
    save_at_end: bool = True
    """Save after the last step."""
    keep: int = 2
    """Newest checkpoints to keep; 0 = all."""
    keep_best: bool = False
    """Save after each evaluation with the lowest held-out loss so far, and keep the best checkpoint beside the newest ones."""
    save_on_stop: bool = True
    """Save after the step in hand when the run is asked to stop (Ctrl-C once, orchestrator stop, a time limit)."""
    resume: bool = False
    """Go on from the newest complete checkpoint of run_dir, as a new attempt. Finding none is an error."""
