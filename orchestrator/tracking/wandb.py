"""Weights & Biases: one run that goes on over all attempts. It never asks, and goes on offline where the server cannot be had.

Calls may take as long as the settings allow: this is used by the recorder (``process.py``), never by a training itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from orchestrator.config.enums import WandbMode
from orchestrator.config.tracking import TrackingConfig
from orchestrator.run_dir import METRICS, WANDB, write_json
from orchestrator.tracking.jsonl import MetricsReader
from orchestrator.tracking.tracker import RunDescription
from orchestrator.tracking.values import measurements
from orchestrator.tracking.wandb_mode import decide_mode

X_AXIS = "step"
KINDS = ("train", "evaluate")
LOWER_IS_BETTER = re.compile(r"train/loss|evaluate/held_out_loss(/.*)?")
COMPILED = ("config.json", "plan.json", "ds_config.json", "model.json")
REFUSED = "run data will not be synced"
_LONGEST_NAME = 128


class WandbTracker:
    """Records to W&B. Whatever goes wrong is said once through ``say``, and then this tracker is silent.

    ``primary`` is the writer of rank 0; the others, of a shared run, only add the system metrics of their host. ``output`` is
    the file that W&B prints to, if it is one: nothing else says that the server has refused what was uploaded.
    """

    def __init__(
        self,
        config: TrackingConfig,
        *,
        run_id: str,
        say: Callable[[str], None],
        primary: bool = True,
        output: Path | None = None,
    ) -> None:
        self._output = output
        self._config = config
        self._run_id = run_id
        self._say = say
        self._primary = primary
        self._description: RunDescription | None = None
        self._run: Any = None
        self._shared = False
        self._is_incomplete = False
        self._entries = 0
        self._steps: dict[str, int] = {}
        """The last step that W&B has, by kind of entry."""
        self._best: dict[str, float] = {}
        self.record: dict[str, Any] | None = None
        """Mode, directory, id and url of the run, and whether it is uploaded, once it is open."""

    def start(self, description: RunDescription) -> None:
        """Open or continue the run; offline if the server cannot be reached."""
        self._description = description
        self._count_earlier()
        decision = decide_mode(self._config.wandb, os.environ)
        if decision.notice:
            self._say(decision.notice)
        if self._config.shared and decision.mode is WandbMode.offline:
            self._say("W&B shares a run of several writers only online: offline rank 0 writes alone")
        if decision.mode is WandbMode.disabled or (decision.mode is WandbMode.offline and not self._primary):
            return
        self._guarded(lambda: self._open_or_fall_back(description, decision.mode))
        if self._run is not None and self._primary:
            self._record_artifact("compiled-run", self._add_compiled, f"attempt-{description.attempt}")
            if self._best:
                self._guarded(lambda: self._run.summary.update(self._best))

    def log(self, entry: Mapping[str, Any]) -> None:
        """Record the numbers of an entry under ``train/`` or ``evaluate/``, against its step.

        What a later attempt does again is recorded already, as the earlier one did it.
        """
        if self._run is None or not self._primary or entry["step"] <= self._steps.get(entry["kind"], -1):
            return
        # W&B's own step is the number of the entry, which grows over all attempts, offline too; a shared run has none
        step = None if self._shared else self._entries
        moment = {"_timestamp": entry["time"]} if "time" in entry else {}
        values = {X_AXIS: entry["step"], **measurements(entry), **moment}
        better = self._note(entry)
        self._guarded(lambda: self._run.log(values, step=step, commit=True), again=False)
        if better:
            self._guarded(lambda: self._run.summary.update(better))

    def checkpoint(self, path: Path, step: int) -> None:
        """Record a checkpoint by reference, if that is asked for: its files stay where they are."""
        if self._config.checkpoints and self._run is not None and self._primary:
            # its files are neither read nor copied
            uri = path.absolute().as_uri()
            self._record_artifact("checkpoint", lambda artifact: artifact.add_reference(uri, checksum=False), f"step-{step}")

    def summary(self, values: Mapping[str, Any]) -> None:
        """Record the values of the whole run."""
        if self._run is not None and self._primary:
            known = {key: value for key, value in values.items() if value is not None}
            self._guarded(lambda: self._run.summary.update(known))

    def finish(self, *, failed: bool) -> None:
        """Close the run with the exit code of the training."""
        if self._run is None:
            return
        self._guarded(lambda: self._run.finish(exit_code=1 if failed else 0))
        if self._run is not None and self.record is not None and self.record["mode"] == WandbMode.online:
            if getattr(self._run, "_finish_timed_out", False):
                self.incomplete(f"it was not uploaded within {self._config.finish_timeout_seconds:g} s after the end")
            elif self._output is not None and REFUSED in self._output.read_text(errors="replace"):
                self.incomplete("the server refused it")
            self.record["uploaded"] = not self._is_incomplete
            self._write_record()
        self._run = None

    def incomplete(self, reason: str) -> None:
        """Note that the server does not get everything; what is on the disk can be uploaded later. Said once."""
        if not self._is_incomplete:
            self._is_incomplete = True
            self._say(f"W&B lacks a part of the run, which is kept on the disk: {reason}")

    def _open_or_fall_back(self, description: RunDescription, mode: WandbMode) -> None:
        try:
            self._open(description, mode)
        except Exception as problem:
            if mode is WandbMode.offline or not self._primary:
                raise
            self._reopen_offline(f" (it could not go online: {_first_line(problem)})")

    def _open(self, description: RunDescription, mode: WandbMode, *, because: str = "") -> None:
        import wandb

        self._shared = self._config.shared and mode is WandbMode.online
        run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            group=self._config.group or description.sweep,
            job_type=self._config.job_type,
            tags=[*self._config.tags],
            name=self._config.name or _name(description),
            id=self._run_id,
            resume="allow",
            dir=str(description.attempt_dir),
            mode=cast(Any, "shared" if self._shared else str(mode)),
            config=self._run_config(description) if self._primary else None,
            settings=wandb.Settings(**self._settings()),
        )
        self._run = run
        if not self._primary:
            return
        run.define_metric(X_AXIS, hidden=True)
        for kind in KINDS:
            run.define_metric(f"{kind}/*", step_metric=X_AXIS)
        url = run.url if mode is WandbMode.online else None
        directory = str(Path(run.dir).parent)
        self.record = {"mode": str(mode), "directory": directory, "id": run.id, "url": url, "uploaded": False}
        self._write_record()
        self._say(f"W&B {mode}: {url or directory}{because}")

    def _settings(self) -> dict[str, Any]:
        """The launcher keeps the console; system metrics are those of the training, not of the recorder."""
        settings: dict[str, Any] = {
            "silent": True,
            "console": "off",
            "disable_job_creation": True,
            "init_timeout": self._config.init_timeout_seconds,
            "finish_timeout": self._config.finish_timeout_seconds,
            "x_stats_pid": os.getppid(),
        }
        if self._config.system_metrics_seconds > 0:
            settings["x_stats_sampling_interval"] = self._config.system_metrics_seconds
        else:
            settings["x_disable_stats"] = True
        if devices := _visible_devices(os.environ):
            settings["x_stats_gpu_device_ids"] = devices
        if self._shared:
            label = os.uname().nodename
            settings |= {"x_label": label, "x_primary": self._primary, "x_update_finish_state": self._primary}
        return settings

    @staticmethod
    def _run_config(description: RunDescription) -> dict[str, Any]:
        return {
            "config": dict(description.config),
            "plan": dict(description.plan),
            "ds_config": dict(description.ds_config),
        }

    def _add_compiled(self, artifact: Any) -> None:
        """What the workers were given. The files of an attempt never change, so none is copied."""
        assert self._description is not None
        for name in COMPILED:
            artifact.add_file(str(self._description.attempt_dir / name), policy="immutable")

    def _record_artifact(self, kind: str, add: Callable[[Any], object], alias: str) -> None:
        """An artifact that cannot be recorded takes nothing from the metrics."""
        import wandb

        try:
            artifact = wandb.Artifact(f"{kind}-{re.sub(r'[^a-zA-Z0-9_.-]', '_', self._run_id)}", type=kind)
            add(artifact)
            self._run.log_artifact(artifact, aliases=["latest", alias])
        except Exception as problem:
            self._say(f"W&B does not record {kind} {alias}: {_first_line(problem)}")

    def _count_earlier(self) -> None:
        self._entries, self._steps, self._best = 0, {}, {}
        assert self._description is not None
        for path in self._description.earlier:
            for entry in MetricsReader(path).new():
                self._note(entry)

    def _note(self, entry: Mapping[str, Any]) -> dict[str, float]:
        """Count an entry; returns what it makes the best so far."""
        kind, step = entry["kind"], entry["step"]
        if step <= self._steps.get(kind, -1):
            return {}
        self._entries += 1
        self._steps[kind] = step
        better = {
            f"best/{name}": value
            for name, value in measurements(entry).items()
            if LOWER_IS_BETTER.fullmatch(name) and value < self._best.get(f"best/{name}", float("inf"))
        }
        self._best |= better
        return better

    def _write_record(self) -> None:
        assert self._description is not None and self.record is not None
        write_json(self._description.attempt_dir / WANDB, self.record)

    def _guarded(self, action: Callable[[], object], *, again: bool = True) -> None:
        """Do it; where that fails online, go on offline, and do it there if it is to be done ``again``."""
        try:
            action()
        except Exception as problem:
            try:
                if self.record is None or self.record["mode"] != WandbMode.online:
                    raise
                self._go_offline(problem)
                if again:
                    action()
            except Exception as last:
                self._say(f"W&B failed and records no more: {_first_line(last)}")
                self._run = None

    def _go_offline(self, problem: Exception) -> None:
        """Record the attempt anew on the disk: all entries are in the metrics file."""
        self._reopen_offline(f" (it failed online: {_first_line(problem)})")
        self._count_earlier()
        assert self._description is not None
        for entry in MetricsReader(self._description.attempt_dir / METRICS).new():
            self.log(entry)

    def _reopen_offline(self, because: str) -> None:
        import wandb

        # the service holds on to the id of a run that it could not start or end; it may also have died
        with suppress(Exception, SystemExit):
            wandb.teardown()
        assert self._description is not None
        self._open(self._description, WandbMode.offline, because=because)


def point_name(overrides: Sequence[str]) -> str:
    """The name of a sweep's point: what it sets, each key without its groups."""
    words = [override for override in overrides if not override.startswith("hydra")]
    shown = []
    for word in words:
        key, _, value = word.partition("=")
        shown.append(f"{key.lstrip('+~').rpartition('.')[2]}={value}")
    return " ".join(shown)[:_LONGEST_NAME]


def _name(description: RunDescription) -> str | None:
    if os.environ.get("WANDB_SWEEP_ID"):
        # an agent's: W&B numbers the runs of its sweeps
        return None
    return point_name(description.overrides) or description.run_name


def _visible_devices(environment: Mapping[str, str]) -> list[int]:
    """The devices of this job by their numbers; none if they are named otherwise or not restricted."""
    names = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [int(name) for name in names] if all(name.strip().isdigit() for name in names) else []


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
