"""The file of a cluster preset: where it goes, what it says, and how it is used afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config.calibration import CalibrationConfig
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.run_dir import write_text

FOLDER = "cluster"
DEFAULT_CONFIG_DIR = Path("conf.d")
RULE = "calibrate-file"
_MARK = "# Written by orchestrator calibrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetFile:
    """A preset that may be written."""

    path: Path
    name: str

    @property
    def usage(self) -> str:
        """The words that use it."""
        return f"cluster={self.name} --config-dir {self.path.parent.parent}"

    def write(self, values: Mapping[str, Any], stack: Mapping[str, Any]) -> None:
        """Write the preset; ``stack`` is what it was measured with.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        content = {**values, "name": self.name, "measured_with": stack_line(stack)}
        text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None)
        try:
            write_text(self.path, f"{_MARK}: {self.usage}\n{text}")
        except OSError as problem:
            message = f"{self.path} cannot be written: {problem.strerror}"
            raise ConfigurationError([error(RULE, "calibration.file", message, "name a file in another folder")]) from None

    def to_dict(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``preset`` of ``output=json``."""
        return {"file": str(self.path), "name": self.name, "usage": self.usage, "values": dict(values)}


def preset_file(calibration: CalibrationConfig, cluster_name: str, config_dir: Path | None) -> PresetFile:
    """Where the preset goes. A calibration is renewed in place; no other file is overwritten.

    Raises:
        ConfigurationError: Hydra would not find it there, or something else is there.
    """
    name = calibration.name or f"{cluster_name.removesuffix('_calibrated')}_calibrated"
    path = (config_dir or DEFAULT_CONFIG_DIR) / FOLDER / f"{name}.yaml"
    if calibration.file is not None:
        path = Path(os.path.expanduser(calibration.file))  # noqa: PTH111 - Path's raises for unknown users
        name = calibration.name or path.stem
    wanted = path.parent / FOLDER / f"{name}.yaml" if path.parent.name != FOLDER else path.parent / f"{name}.yaml"
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        message = f"{name!r} cannot be an option of the group cluster"
        raise _refused("calibration.name", message, "use letters, digits, _ and -: calibration.name=our_cluster")
    if path.parent.name != FOLDER or path.suffix != ".yaml" or path.stem != name:
        message = f"{path} is not {name}.yaml in a folder called {FOLDER}, where Hydra looks for clusters"
        raise _refused("calibration.file", message, f"set calibration.file={wanted}")
    if path.exists() and not (path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(_MARK)):
        message = f"{path} exists and is not a calibration"
        raise _refused("calibration.name", message, "choose another calibration.name, or remove the file")
    return PresetFile(path=path, name=name)


def stack_line(stack: Mapping[str, Any]) -> str:
    """``"AMD EPYC, torch 2.9.0, DeepSpeed 0.19.8, 5 runs"``."""
    parts = [str(stack.get("device", "unknown device"))]
    parts += [f"{label} {stack[name]}" for name, label in (("torch", "torch"), ("deepspeed", "DeepSpeed")) if name in stack]
    if "runs" in stack:
        parts.append(f"{stack['runs']} runs")
    return ", ".join(parts)


def _refused(field: str, message: str, fix: str) -> ConfigurationError:
    return ConfigurationError([error(RULE, field, message, fix)])
