"""The names of findings that no planning rule gives: checks of words, files, hosts and checkpoints, where they are made.

They cannot register themselves: some are made by workers, which the command line never imports. A test reads the whole code
and holds this list against every finding in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.findings import RuleEntry, Severity

_E, _W, _I = Severity.error, Severity.warning, Severity.info

_CHECKS: dict[str, tuple[tuple[str, Severity, str], ...]] = {
    "command line": (
        ("unknown-command", _E, "the verb exists"),
        ("unknown-flag", _E, "every flag exists"),
        ("unknown-rule", _E, "the rule to explain exists"),
        ("log", _E, "one log is named, and can be read"),
        ("run", _E, "one run is named, and is there"),
        ("logs", _E, "a log can be shown as it is asked for"),
        ("results", _E, "the folders that are named are there and hold runs or sweeps"),
        ("results-column", _E, "the column to sort by exists; all of them are named"),
        ("results-file", _E, "the table and the plots can be written"),
        ("results-plot", _E, "matplotlib is installed where plots are asked for"),
        ("stop", _E, "there is a run to stop, and its directory can be written to"),
        ("config-dir", _E, "--config-dir names a folder"),
        ("multirun", _E, "only launch sweeps"),
        ("override-grammar", _E, "every override is KEY=VALUE or GROUP=OPTION in Hydra's grammar"),
        ("sweep-value", _E, "several values for one key need launch -m"),
    ),
    "configuration": (
        ("unknown-key", _E, "every key is an option; the nearest is named"),
        ("unknown-option", _E, "every choice of a group exists"),
        ("missing-value", _E, "no option is left without a value"),
        ("wrong-type", _E, "every value has its option's type: no auto, no text for a number, no fraction for a count"),
        ("interpolation", _E, "every ${...} can be resolved"),
        ("composition", _E, "Hydra can compose the files"),
        ("name", _E, "names can become parts of paths"),
        ("secret", _E, "no secret is among the workers' environment variables"),
    ),
    "model": (
        ("model-family", _E, "the model's family is known"),
        ("model-config-file", _E, "the config.json can be read"),
        ("model-size", _E, "every size of the model is a positive whole number"),
        ("model-heads", _E, "heads, key and value heads and their width go together"),
        ("model-rope", _E, "the rotary embedding is complete and of a known type"),
        ("model-entry", _E, "every entry of the Hugging Face config is one of the family, of the right type"),
        ("model-activation", _E, "the activation function is known"),
        ("model-attention", _E, "the family has the attention kernel"),
        ("model-dropout", _E, "dropout is a probability"),
        ("model-contradiction", _E, "options and config.json do not say different things"),
    ),
    "cluster": (("cluster-size", _E, "hosts, devices and their memory are possible sizes"),),
    "layout": (
        ("parallel-size", _E, "each parallel size is at least 1"),
        ("world-size", _E, "tensor x pipeline x data is the number of devices"),
        ("batch-size", _E, "the global batch or the micro-batch is given, each at least 1"),
        ("batch-identity", _E, "global batch = micro-batch x accumulation x data-parallel size"),
    ),
    "plan": (
        ("plan-batch", _E, "the global batch that a plan is made for is known"),
        ("plan-speeds", _E, "the cluster says how fast its devices and links are"),
        ("plan-nothing", _E, "some layout fits the devices"),
        ("plan-space", _E, "some choice has what planner.fix asks for"),
        ("plan-hosts", _E, "the numbers of hosts to compare are a range or a list"),
        ("plan-file", _E, "the experiment that a plan is written to is a new file in a folder called experiment"),
    ),
    "capacity": (
        ("device-memory", _E, "every rank's estimate fits its device; within the margin it is a warning"),
        ("host-memory", _E, "every host's estimate fits its RAM, at the start, in a step and while saving"),
        ("nvme-capacity", _E, "what is written to a host's NVMe fits on it; within the margin it is a warning"),
        ("nvme-unknown", _W, "the size of the disk that is written to is known"),
    ),
    "freeze": (("freeze-stage", _E, "every pipeline stage trains a parameter"),),
    "hostfile": (
        ("hostfile-missing", _E, "the hostfile is there: DeepSpeed would train on this machine alone"),
        ("hostfile-unreadable", _E, "the hostfile is UTF-8 text that can be read"),
        ("hostfile-empty", _E, "the hostfile names a host"),
        ("hostfile-line", _E, "every line is HOST slots=N; DeepSpeed reads slots=4x as 4"),
        ("hostfile-slots", _E, "every host has a possible number of slots; DeepSpeed lets slots=0 pass"),
        ("hostfile-address", _E, "host names have no colon or @: filters and pdsh cut them there"),
        ("hostfile-duplicate", _E, "no machine appears twice, under whatever names: its devices would be used twice"),
        ("hostfile-loopback", _E, "no loopback name stands beside other hosts, which would call themselves"),
        ("hostfile-encoding", _W, "the file starts with its first host, not with a byte-order mark"),
    ),
    "host filter": (
        ("host-filter-both", _E, "cluster.include and cluster.exclude are not given together"),
        ("host-filter-syntax", _E, "a filter is HOST[:SLOT,SLOT...] joined by @: no ranges, no comma between hosts"),
        ("host-filter-host", _E, "a filter names hosts of the cluster, each once"),
        ("host-filter-slot", _E, "a filter names slots that the host has"),
        ("host-filter-empty", _E, "a filter leaves a device"),
    ),
    "launch": (
        ("launch-hosts", _E, "several hosts have names to be reached by"),
        ("launch-backend", _E, "the launcher backend reaches the hosts"),
        ("detach", _E, "a controller can be started on the first host, and the run is no point of a sweep"),
        ("visible-devices", _E, "CUDA_VISIBLE_DEVICES has numbers, and enough of them"),
    ),
    "Slurm": (
        ("slurm-hosts", _E, "Slurm chooses the hosts, and says in the allocation which they are"),
        ("slurm-option", _E, "an option of the job is sbatch's long name of it, and not one that the orchestrator sets"),
        ("slurm-time", _E, "the job has time to train before it is asked to save"),
        ("slurm-devices", _E, "a host of the allocation has the devices that are configured"),
        ("slurm-programs", _E, "jobs can be submitted from here"),
        ("slurm-submit", _E, "sbatch takes the job"),
    ),
    "preflight": (
        ("package", _E, "the packages of training are installed in supported versions"),
        ("deepspeed-version", _E, "the installed DeepSpeed has what is asked of it"),
        ("host-unreachable", _E, "every host lets us in over ssh without a question, and answers in time"),
        ("host-python", _E, "every host has this Python at this path, and it runs"),
        ("host-setup", _E, "the lines of launcher.setup succeed on every host"),
        ("hosts-differ", _E, "all hosts have the same versions, sources, devices, data and weights"),
        ("unknown-fact", _W, "everything could be found out"),
        ("devices", _E, "the hosts have the devices that are configured"),
        ("device-busy", _E, "nobody else computes on the devices"),
        ("device-mode", _E, "the compute mode of the devices lets processes use them"),
        ("device-errors", _W, "the devices' memory has had no uncorrected error"),
        ("measured-capacity", _W, "the hosts have the free memory and disk that are configured"),
        ("busy-memory", _W, "others leave the RAM that the run needs"),
        ("open-files", _W, "a process may open as many files as a rank has connections"),
        ("collective", _E, "an all-reduce over all ranks succeeds, where it is asked for"),
        ("slow-collective", _W, "no host reduces slower than the others, nor all slower than their links"),
        ("clock-skew", _W, "the clocks of the hosts agree"),
        ("shared-memory", _W, "/dev/shm is large enough for the ranks of a host"),
        ("build-lock", _E, "no stale lock of an op build is left"),
        ("compiler", _E, "what compiles DeepSpeed's ops is installed"),
        ("ops", _I, "DeepSpeed ops that the first start compiles"),
        ("launcher", _E, "the programs that reach other hosts are installed"),
        ("master-port", _E, "the rendezvous port is free on the first host"),
        ("master-unreached", _E, "all hosts reach the first one at one of its addresses"),
        ("run-directory-shared", _E, "run_dir is the same folder on all hosts, and can be written to"),
        ("checkpoint-disk", _E, "the disk of run_dir has room for a checkpoint"),
        ("data-file", _E, "files of data and tokenizer exist"),
        ("nvme-directory", _E, "the NVMe folder is there and can be written to"),
        ("nvme-direct-io", _E, "the NVMe folder takes direct I/O"),
        ("nvme-file-system", _W, "the NVMe folder is on a local disk, neither in RAM nor on the network"),
    ),
    "pretrained weights": (
        ("pretrained-folder", _E, "model.pretrained is a folder that can be read"),
        ("pretrained-files", _E, "the folder holds safetensors"),
        ("pretrained-index", _E, "the index and the files agree"),
        ("pretrained-file", _E, "every weight file is whole"),
        ("pretrained-family", _E, "the weights are of the model's family"),
        ("pretrained-missing", _E, "every tensor of the model is there"),
        ("pretrained-shape", _E, "every tensor has the model's shape"),
        ("pretrained-dtype", _E, "the weights are floating-point numbers"),
        ("pretrained-extra", _I, "tensors that the model has no use for"),
        ("pretrained-model", _E, "the folder's config.json describes the model"),
        ("pretrained-config", _W, "the model uses the weights as they were trained"),
    ),
    "run directory": (("run-directory", _E, "run_dir can be used, is no other run's and not in use"),),
    "resume": (
        ("resume", _E, "there is a complete checkpoint to go on from, and it can be read"),
        ("resume-layout", _E, "the parallel sizes are the checkpoint's"),
        ("resume-partition", _E, "the pipeline's boundaries are the checkpoint's"),
        ("resume-zero-stage", _E, "the ZeRO stage is the checkpoint's"),
        ("resume-precision", _E, "the number format is the checkpoint's"),
        ("resume-option", _E, "options that a checkpoint fixes are as they were"),
        ("resume-model", _E, "the model is the checkpoint's"),
        ("resume-data", _E, "the data and its order are as they were"),
        ("resume-batch", _W, "the global batch is as it was"),
        ("resume-steps", _I, "steps are left to train"),
    ),
    "exact estimate": (("exact-estimate", _E, "the engines can be built here: torch, DeepSpeed and enough free RAM"),),
    "export": (
        ("export-words", _E, "export only takes options that it reads"),
        ("export-run", _E, "run_dir holds a run"),
        ("export-checkpoint", _E, "the checkpoint is there and complete"),
        ("export-output", _E, "the output folder is new and can be written"),
        ("export-shard", _E, "the size of a weight file is a number above 0"),
        ("export-masters", _W, "the weights are exported as exactly as the checkpoint has them"),
        ("export-tokenizer", _W, "the tokenizer can be exported too"),
    ),
    "calibrate": (
        ("calibrate-run", _E, "every run that is named has ended, is whole, and has a few steady steps"),
        ("calibrate-mixed", _E, "runs that are fitted together had the same hardware, software and threads"),
        ("calibrate-facts", _E, "the cluster of the runs states the labels of its devices"),
        ("calibrate-measure", _E, "what is measured is on this host"),
        ("calibrate-file", _E, "the preset goes to a folder called cluster and overwrites nothing but a calibration"),
    ),
    "data": (
        ("data-text", _E, "the text is there and is UTF-8"),
        ("data-empty", _E, "there is some text"),
        ("data-size", _E, "the text makes enough sequences"),
        ("data-cache", _E, "data.cache_dir can be written to"),
        ("tokenizer-file", _E, "the tokenizer file can be read"),
    ),
}


def check_entries() -> Iterator[RuleEntry]:
    """Every check, by subject."""
    for subject, checks in _CHECKS.items():
        for name, severity, description in checks:
            yield RuleEntry(name=name, severity=severity, subject=subject, description=description)
