"""Options of tracking: where the metrics of a run go."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.config.enums import WandbMode


@dataclass(kw_only=True, slots=True)
class TrackingConfig:
    """Where metrics go beside ``metrics.jsonl``, which is always written."""

    wandb: WandbMode = WandbMode.auto
    """How Weights & Biases is used."""
    project: str = "orchestrator"
    """Project of the W&B run."""
    entity: str | None = None
    """W&B team or user; null = the key's own."""
    group: str | None = None
    """Group of the W&B run; null = none."""
    name: str | None = None
    """Name of the W&B run; null = made from the overrides of a sweep's point, else the name of run_dir."""
    job_type: str = "train"
    """Job type of the W&B run."""
    tags: list[str] = field(default_factory=list)
    """Tags of the W&B run."""
    shared: bool = False
    """One writer a host instead of rank 0 alone, for system metrics of every host; online only."""
    checkpoints: bool = False
    """Record each checkpoint as a W&B artifact by reference: its files stay where they are."""
    tensorboard: bool = False
    """Write TensorBoard event files to the attempt as well."""
    csv: bool = False
    """Write metrics.csv to the attempt as well."""
