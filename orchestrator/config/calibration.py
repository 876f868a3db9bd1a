"""Options of ``calibrate``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class CalibrationConfig:
    """The preset that ``calibrate`` writes."""

    name: str | None = None
    """Name of the preset that is written; null = the cluster's, with ``_calibrated``."""
    file: str | None = None
    """File of the preset, in a folder called cluster; null = ``cluster/NAME.yaml`` in --config-dir, or in ``conf.d``."""
