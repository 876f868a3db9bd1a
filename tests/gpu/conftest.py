from __future__ import annotations

import pytest

from orchestrator.launch.preflight.probe import devices


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Checks of this folder are for machines with an NVIDIA device."""
    has_device = bool(devices({})["devices"])
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            if not has_device:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
