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
    """Group of the W&B run; null = the directory of the sweep that the run is a point of."""
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
    system_metrics_seconds: float = 15.0
    """Seconds between W&B's samples of CPU, memory, disk, network and devices; 0 = none."""
    init_timeout_seconds: float = 30.0
    """How long W&B may take to open the run before it is recorded offline; the training does not wait for it."""
    finish_timeout_seconds: float = 60.0
    """How long the end of a run waits for W&B's upload; what is left then stays on the disk."""
    tensorboard: bool = False
    """Write TensorBoard event files to run_dir/tensorboard as well."""
    csv: bool = False
    """Write run_dir/metrics.csv as well: a row an entry, of all attempts."""
