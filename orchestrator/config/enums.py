"""The choices of the options, as enums whose names are their values."""

from __future__ import annotations

from enum import StrEnum


class Command(StrEnum):
    """The verbs of the command line."""

    validate = "validate"
    plan = "plan"
    compile = "compile"
    launch = "launch"
    export = "export"
    prepare = "prepare"
    doctor = "doctor"
    rules = "rules"
    explain = "explain"
    calibrate = "calibrate"
    preflight = "preflight"
    status = "status"
    logs = "logs"
    stop = "stop"
    results = "results"


class Output(StrEnum):
    """How a command speaks on standard output."""

    text = "text"
    json = "json"


class Estimate(StrEnum):
    """Where the figures of ``validate`` come from."""

    closed_form = "closed_form"
    exact = "exact"


class Objective(StrEnum):
    """What the best plan is best at."""

    time = "time"
    cost = "cost"
    fewest_hosts = "fewest_hosts"


class Family(StrEnum):
    """Model families whose shapes, parameter counts and parallel layers are known."""

    gpt2 = "gpt2"
    llama = "llama"
    mistral = "mistral"
    qwen2 = "qwen2"
    qwen3 = "qwen3"
    gpt_neox = "gpt_neox"
    gemma2 = "gemma2"
    phi3 = "phi3"


class AttentionImplementation(StrEnum):
    """Attention kernels, as Hugging Face names them."""

    eager = "eager"
    sdpa = "sdpa"
    flash_attention_2 = "flash_attention_2"


class Accelerator(StrEnum):
    """What DeepSpeed calls the accelerator. ROCm devices are ``cuda`` to torch and to DeepSpeed."""

    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    """Number formats of training."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class PipelineSchedule(StrEnum):
    """Order of forward and backward passes of a pipeline."""

    one_f_one_b = "one_f_one_b"
    gpipe = "gpipe"
    dual_pipe_v = "dual_pipe_v"


class OffloadDevice(StrEnum):
    """Where ZeRO keeps what it offloads."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class RecomputePolicy(StrEnum):
    """Which activations are dropped in the forward pass and computed again in the backward pass."""

    none = "none"
    full = "full"
    every_k_layers = "every_k_layers"
    selective = "selective"


class OptimizerType(StrEnum):
    """Optimizers, as DeepSpeed names them."""

    AdamW = "AdamW"
    Adam = "Adam"
    Lion = "Lion"
    SGD = "SGD"
    Adagrad = "Adagrad"
    Muon = "Muon"


class LrSchedule(StrEnum):
    """Shapes of the learning rate after the warmup."""

    constant = "constant"
    cosine = "cosine"
    wsd = "wsd"


class DataSource(StrEnum):
    """Where the training text comes from."""

    python_stdlib = "python_stdlib"
    text = "text"
    tokens = "tokens"
    mixture = "mixture"
    synthetic = "synthetic"


class Packing(StrEnum):
    """How sequences are made of documents."""

    stream = "stream"
    whole_documents = "whole_documents"


class TextFormat(StrEnum):
    """What ``prepare`` reads; ``dataset`` is a Hugging Face dataset that was saved to disk."""

    auto = "auto"
    jsonl = "jsonl"
    parquet = "parquet"
    text = "text"
    dataset = "dataset"


class Direction(StrEnum):
    """What the best value of a metric is."""

    minimize = "minimize"
    maximize = "maximize"


class View(StrEnum):
    """How a run is shown while it goes on."""

    auto = "auto"
    live = "live"
    lines = "lines"
    quiet = "quiet"


class WandbMode(StrEnum):
    """How Weights & Biases is used; ``auto`` is online with a key and offline without."""

    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


class LauncherBackend(StrEnum):
    """How DeepSpeed's launcher reaches the hosts; ``auto`` is local for this host alone and ssh otherwise."""

    auto = "auto"
    local = "local"
    ssh = "ssh"
    pdsh = "pdsh"
    slurm = "slurm"
