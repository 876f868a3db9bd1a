"""Asks what this CPU is once, for all ranks: DeepSpeed asks three times in each, and every answer takes a new interpreter."""

from __future__ import annotations

import cpuinfo

_ANSWER = cpuinfo.get_cpu_info()


def _known() -> dict[str, object]:
    return dict(_ANSWER)


cpuinfo.get_cpu_info = _known
