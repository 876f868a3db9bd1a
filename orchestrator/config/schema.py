"""Every option of the orchestrator, with its type, default, unit and meaning.

One dataclass a config group of ``conf/``; the text under a field is its documentation: ``--help`` and the README read it
from here. Sizes are optional where they can be derived (``null``), and the planner is the only one who derives them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from orchestrator.config.calibration import CalibrationConfig
from orchestrator.config.data import DataConfig, PrepareConfig
from orchestrator.config.enums import (
    Accelerator,
    AttentionImplementation,
    Command,
    Estimate,
    Family,
    LauncherBackend,
    LrSchedule,
    OffloadDevice,
    OptimizerType,
    Output,
    PipelineSchedule,
    Precision,
    RecomputePolicy,
    View,
)
from orchestrator.config.planner import PlannerConfig
from orchestrator.config.speed import SpeedConfig
from orchestrator.config.sweep import ResultsConfig, SweepConfig
from orchestrator.config.tracking import TrackingConfig
from orchestrator.config.training import CheckpointConfig, TrainingConfig


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The model: a known shape (``model=llama_3_8b``), or any local Hugging Face ``config.json`` (``model=hf``)."""

    name: str = MISSING
    """Name of the model in reports and run directories."""
    config_path: str | None = None
    """A local Hugging Face folder, or its ``config.json``; the size fields below then stay null."""
    pretrained: str | None = None
    """A local Hugging Face folder with safetensors to start from; ``config_path`` null = the shape is its own."""
    family: Family | None = None
    """Model family; with ``config_path`` it is read from ``model_type``."""
    vocab_size: int | None = None
    """Rows of the token embedding."""
    hidden_size: int | None = None
    """Width of the residual stream."""
    intermediate_size: int | None = None
    """Width of the MLP."""
    num_hidden_layers: int | None = None
    """Number of transformer layers."""
    num_attention_heads: int | None = None
    """Number of query heads."""
    num_key_value_heads: int | None = None
    """Number of key and value heads; null = as many as query heads."""
    head_dim: int | None = None
    """Width of one head; null = hidden_size / num_attention_heads."""
    max_position_embeddings: int | None = None
    """Longest sequence the model is made for, in tokens."""
    tie_word_embeddings: bool | None = None
    """Whether the output head is the token embedding; null = the family's default."""
    hf_config: dict[str, Any] = field(default_factory=dict)
    """Further entries of the Hugging Face config, spelt as the family spells them (``rope_parameters``, ...)."""
    attention_implementation: AttentionImplementation = AttentionImplementation.sdpa
    """Attention kernel."""
    dropout: float = 0.0
    """Dropout probability of embeddings, residuals and attention, where the family has them."""


@dataclass(kw_only=True, slots=True)
class ClusterConfig:
    """The hosts and their devices. Presets carry usable sizes (what torch reports), not the label's."""

    name: str = MISSING
    """Name of the cluster in reports."""
    hosts: int = 1
    """Number of hosts; a hostfile overrides it."""
    devices_per_host: int = MISSING
    """Devices (processes) of one host; a hostfile's slots override it."""
    hostfile: str | None = None
    """DeepSpeed hostfile: one ``HOST slots=N`` a line. Its hosts and slots replace the two fields above."""
    include: str | None = None
    """Only these devices, as DeepSpeed writes them: ``HOST:SLOT,SLOT@HOST``; a host without slots gives all. null = all."""
    exclude: str | None = None
    """All devices but these, written like include; not together with it. null = none."""
    accelerator: Accelerator = MISSING
    """Kind of device."""
    device_name: str = MISSING
    """Device model in reports."""
    device_memory_gib: float | None = None
    """Memory of one device as torch reports it, GiB; null = this host's RAM shared by its processes (CPU only)."""
    device_context_gib: float = 0.0
    """What the framework takes of a device before any tensor, GiB: CUDA context and communicators; on CPU the interpreter."""
    host_memory_gib: float | None = None
    """RAM of one host, GiB; null = this machine's, cgroup limit included."""
    nvme_gib: float | None = None
    """NVMe of one host, GiB; null = unknown."""
    precisions: list[Precision] = field(default_factory=lambda: [Precision.fp32])
    """Number formats the device computes in natively."""
    bf16_tflops: float | None = None
    """Dense bf16 peak of one device, TFLOP/s; model FLOPs utilization is measured against it. null = unknown."""
    fp16_tflops: float | None = None
    """Dense fp16 peak (fp32 accumulation) of one device, TFLOP/s."""
    fp32_tflops: float | None = None
    """fp32 peak of one device, TFLOP/s."""
    memory_bandwidth_gbps: float | None = None
    """Device memory bandwidth, GB/s."""
    device_link_gbps: float | None = None
    """Bandwidth between devices of one host, one direction, all links of a device, GB/s."""
    host_link_gbps: float | None = None
    """Bandwidth between host and device, one direction, GB/s."""
    network_gbps: float | None = None
    """Network bandwidth of one host, one direction, GB/s (not Gbit/s)."""
    cores_per_host: int | None = None
    """CPU: cores that a host's processes share; peaks and memory bandwidth are then those of one core. null = of a process."""
    measured_with: str | None = None
    """Device, torch and DeepSpeed that the speeds were measured with (orchestrator calibrate)."""
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    """What of the rates above is really reached, and fixed costs."""


@dataclass(kw_only=True, slots=True)
class ParallelismConfig:
    """How the devices are divided: pipeline x data x tensor, in DeepSpeed's axis order."""

    auto: bool = False
    """Let the planner choose layout, schedule, ZeRO, offload, micro-batch and recomputation; a run keeps its choice."""
    tensor_parallel_size: int = 1
    """Devices that share every layer (Megatron tensor parallelism)."""
    pipeline_parallel_size: int = 1
    """Pipeline stages."""
    data_parallel_size: int | None = None
    """Replicas of the model; null = devices / (tensor x pipeline)."""
    sequence_parallel: bool = False
    """Norms, dropout and residuals see a share of the sequence on each tensor-parallel rank, whose number must divide it."""
    partition_method: str = "uniform"
    """How layers are cut into pipeline stages: uniform, parameters, balanced, type:REGEX (layer class) or explicit."""
    partition_boundaries: list[int] | None = None
    """With explicit: the first layer of each stage and the number of layers, ``[0, 4, 9]``."""
    schedule: PipelineSchedule = PipelineSchedule.one_f_one_b
    """one_f_one_b; gpipe: all forwards, then all backwards; dual_pipe_v: 2 stages a rank, at least 2 x stages micro-batches."""


@dataclass(kw_only=True, slots=True)
class ZeroConfig:
    """ZeRO: what the data-parallel replicas shard instead of copying. Sizes are elements, as in DeepSpeed."""

    stage: int = 1
    """0 shards nothing, 1 optimizer states, 2 gradients as well, 3 parameters as well."""
    reduce_bucket_size: int = 500_000_000
    """Elements reduced at once in the backward pass."""
    allgather_bucket_size: int = 500_000_000
    """Elements gathered at once after the optimizer step (stages 1 and 2)."""
    overlap_comm: bool | None = None
    """Reduce gradients while the backward pass goes on; null = DeepSpeed's default (stage 3 only)."""
    contiguous_gradients: bool = True
    """Copy gradients into one buffer as they are produced."""
    reduce_scatter: bool = True
    """Reduce each gradient to its owner instead of to all."""
    round_robin_gradients: bool = False
    """Spread gradient copies over ranks when the optimizer is offloaded (stages 1 and 2)."""
    sub_group_size: int = 1_000_000_000
    """Elements the stage-3 optimizer updates at once."""
    stage3_prefetch_bucket_size: int = 50_000_000
    """Elements of parameters fetched ahead (stage 3)."""
    stage3_param_persistence_threshold: int = 100_000
    """Parameters with fewer elements stay on every rank (stage 3)."""
    stage3_max_live_parameters: int = 1_000_000_000
    """Elements of gathered parameters kept at once (stage 3)."""
    stage3_max_reuse_distance: int = 1_000_000_000
    """A parameter used again within so many elements is not released (stage 3)."""


@dataclass(kw_only=True, slots=True)
class OffloadConfig:
    """What leaves the device: optimizer states from stage 1, parameters at stage 3; NVMe at stage 3 only."""

    optimizer_device: OffloadDevice = OffloadDevice.none
    """Where optimizer states (and the optimizer step) live."""
    param_device: OffloadDevice = OffloadDevice.none
    """Where parameters live between uses (stage 3)."""
    optimizer_ratio: float = 1.0
    """Share of the optimizer states that is offloaded, above 0 to 1; the rest stays on the device (stage 3, CPU)."""
    nvme_path: str | None = None
    """Folder on a local NVMe disk of every host; required when a device above is nvme."""
    pin_memory: bool = True
    """Page-lock the host copies: faster transfers, memory that cannot swap."""
    optimizer_buffer_count: int = 4
    """Swap buffers of the NVMe optimizer; Adam needs at least 4."""
    param_buffer_count: int = 5
    """Swap buffers for NVMe parameters."""
    param_buffer_size: int = 100_000_000
    """Elements of one NVMe parameter buffer; the largest parameter partition must fit in."""
    param_max_in_cpu: int = 1_000_000_000
    """Elements of NVMe parameters that a rank keeps in host memory all the same; only what exceeds it goes to the disk."""


@dataclass(kw_only=True, slots=True)
class PrecisionConfig:
    """Number formats, and the loss scale of fp16."""

    dtype: Precision = Precision.bf16
    """Format of parameters and computation."""
    grad_accum_dtype: Precision | None = None
    """Format gradients are accumulated in; null = fp32 for bf16 from ZeRO stage 1 up, else the dtype above."""
    loss_scale: float = 0.0
    """Fixed loss scale of fp16; 0 = dynamic."""
    initial_scale_power: int = 16
    """Dynamic loss scaling starts at 2 to this power."""
    loss_scale_window: int = 1000
    """Steps without overflow after which the dynamic loss scale doubles."""
    hysteresis: int = 2
    """Overflows that are tolerated before the dynamic loss scale is halved."""
    min_loss_scale: int = 1
    """The dynamic loss scale never falls below; a whole number of at least 1."""


@dataclass(kw_only=True, slots=True)
class ActivationCheckpointingConfig:
    """Activation recomputation (gradient checkpointing)."""

    policy: RecomputePolicy = RecomputePolicy.none
    """none; full keeps the input of each layer; every_k_layers of each group of layers; selective all but the attention."""
    interval: int = 2
    """Layers of one group (policy every_k_layers)."""
    partition_activations: bool = False
    """With full or every_k_layers: each tensor-parallel rank keeps its share of the inputs that recomputation starts from."""
    cpu_checkpointing: bool = False
    """With full or every_k_layers: the inputs that recomputation starts from are kept in host memory."""


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """The optimizer. Weight decay never applies to norms and biases."""

    type: OptimizerType = OptimizerType.AdamW
    """Optimizer."""
    lr: float = 3e-4
    """Peak learning rate."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """Decay of the first and second moment (AdamW, Adam, Muon's Adam); of Lion's update and momentum."""
    eps: float = 1e-8
    """Added to the denominator of the update (AdamW, Adam, Adagrad, Muon's Adam)."""
    weight_decay: float = 0.1
    """Weight decay; decoupled from the gradient with AdamW, Lion and Muon, part of it (L2) with Adam, SGD and Adagrad."""
    momentum: float = 0.9
    """Momentum of SGD (0 = none, and no state) and of Muon."""
    adam_lr: float | None = None
    """Peak learning rate of what Muon leaves to AdamW: embeddings, head, norms and biases; null = lr."""


@dataclass(kw_only=True, slots=True)
class LrSchedulerConfig:
    """The learning rate over the steps: a linear warmup, then a shape."""

    type: LrSchedule = LrSchedule.cosine
    """constant; cosine to min_lr at the last step; wsd: constant, then linear to min_lr over decay_steps."""
    warmup_steps: int = 0
    """Optimizer steps of linear warmup from zero."""
    min_lr: float = 0.0
    """Learning rate at the end of cosine and wsd."""
    decay_steps: int | None = None
    """Optimizer steps of wsd's decay; null = a tenth of training.max_steps."""


@dataclass(kw_only=True, slots=True)
class CommunicationConfig:
    """Collectives between the ranks."""

    communication_data_type: Precision | None = None
    """Format gradients travel in; null = DeepSpeed's default."""
    prescale_gradients: bool = False
    """Divide gradients before they are summed rather than after."""
    gradient_predivide_factor: float = 1.0
    """Gradients are divided by this before the sum, by the rest after; not with prescale_gradients or reduce_scatter."""
    timeout_minutes: float = 30.0
    """A collective that takes longer fails the run."""


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """``export``: a checkpoint of ``run_dir`` as a Hugging Face folder."""

    output: str | None = None
    """Folder to write; it must not exist yet. null = ``export`` in run_dir."""
    tag: str | None = None
    """The checkpoint, as it is called in run_dir/checkpoints; best = lowest held-out loss; null = the newest complete one."""
    dtype: Precision | None = None
    """Format of the exported weights; null = the run's."""
    max_shard_gb: float = 5.0
    """A safetensors file is not made larger, GB."""


@dataclass(kw_only=True, slots=True)
class SlurmConfig:
    """A Slurm job."""

    options: dict[str, str] = field(default_factory=dict)
    """Options of sbatch by their long names (``partition: gpu``, ``time: "08:00:00"``); one without a value has ``"true"``."""
    requeue: bool = True
    """Save and requeue the job before its time limit; the next start goes on from there."""
    save_seconds_before_limit: int = 300
    """How long before the time limit to save and stop, seconds."""


@dataclass(kw_only=True, slots=True)
class LauncherConfig:
    """How the workers are started."""

    backend: LauncherBackend = LauncherBackend.auto
    """How DeepSpeed's launcher reaches the hosts."""
    master_addr: str | None = None
    """Address of the first host that all others reach; null = the one that preflight finds, else the host's name."""
    master_port: int | None = None
    """Rendezvous port; null = one that is free on the first host."""
    ssh_arguments: list[str] = field(default_factory=list)
    """Further arguments of every ssh (``[-F, /home/me/ssh_config, -p, "2222"]``)."""
    connect_seconds: float = 10.0
    """How long ssh may take to reach a host, seconds."""
    setup: list[str] = field(default_factory=list)
    """Shell lines run on every host before its workers start (``module load cuda``); one that fails ends the start."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the workers (``NCCL_DEBUG: INFO``). Names that look like secrets are refused."""
    detach: bool = False
    """Hand the run to a controller on the first host, or to its Slurm job, and return; then orchestrator status, logs, stop."""
    hang_timeout: float = 1800.0
    """Seconds without a step (or other progress: data, evaluation, checkpoint) after which a run counts as hung; 0 = never."""
    stop_seconds: float = 10.0
    """Between SIGTERM and SIGKILL when a run is stopped, seconds."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """The job that ``launcher=slurm`` submits."""


@dataclass(kw_only=True, slots=True)
class PreflightConfig:
    """Checks of every host before a run starts."""

    enabled: bool = True
    """Check versions, devices, memory, disks, compiler, stale build locks and ports first."""
    timeout: float = 60.0
    """How long the probe of one host may take, seconds."""
    parallel: int = 128
    """Hosts that are probed at once."""
    collective: bool = False
    """Run a small all-reduce over all ranks as well, and compare each host's bus bandwidth with the cluster preset."""


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """A whole run."""

    command: Command = Command.validate
    """The verb; the command line sets it."""
    output: Output = Output.text
    """text for people; json prints one JSON object on standard output and nothing else there."""
    estimate: Estimate = Estimate.closed_form
    """validate: closed_form; exact also builds the engine of each class of ranks on this CPU and counts its bytes."""
    measure: bool = False
    """calibrate: measure this host (offload.nvme_path: its NVMe too); beside run directories, also fit to them."""
    view: View = View.auto
    """launch, logs, prepare: how it is shown while it goes on; auto = live on a terminal, else lines."""
    dry_run: bool = False
    """launch: stop before the start and print the command."""
    follow: bool = False
    """logs: go on with what is printed until the run has ended."""
    rank: int | None = None
    """logs: only lines that name this rank, and for 0 the progress; null = all."""
    last: int = 50
    """logs: lines to begin with, the last ones; 0 = all."""
    now: bool = False
    """stop: end the run at once, without a checkpoint."""
    seed: int = 1234
    """Seeds the initial weights, the data order and dropout."""
    run_dir: str = MISSING
    """Directory of the run: the request, the attempts, the checkpoints."""
    deepspeed_json: str | None = None
    """validate, compile: a DeepSpeed JSON of your own; it states ZeRO, offload, precision, optimizer and batch sizes."""
    deepspeed_version: str | None = None
    """With deepspeed_json: the DeepSpeed it is for; null = the installed one, or 0.19.8."""
    hf_arguments: str | None = None
    """With deepspeed_json: a JSON or YAML file of Hugging Face TrainingArguments, which fill ``"auto"`` as the Trainer does."""
    client_optimizer: str | None = None
    """With deepspeed_json: class of the optimizer your script hands to DeepSpeed (``AdamW``); null = none, or not known."""
    world_size: int | None = None
    """With deepspeed_json: so many devices, where no cluster is named; hosts of up to 8 H100 with 80 GB are assumed."""
    model: ModelConfig = field(default_factory=ModelConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    offload: OffloadConfig = field(default_factory=OffloadConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    activation_checkpointing: ActivationCheckpointingConfig = field(default_factory=ActivationCheckpointingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lr_scheduler: LrSchedulerConfig = field(default_factory=LrSchedulerConfig)
    communication: CommunicationConfig = field(default_factory=CommunicationConfig)
    data: DataConfig = field(default_factory=DataConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    results: ResultsConfig = field(default_factory=ResultsConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    preflight: PreflightConfig = field(default_factory=PreflightConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
