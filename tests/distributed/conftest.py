"""What the distributed tests measured, in the terminal's summary."""

from __future__ import annotations

import pytest

TABLES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def report(pytestconfig):
    """Takes texts to print after the tests."""
    return pytestconfig.stash.setdefault(TABLES, []).append


def pytest_terminal_summary(terminalreporter, config):
    for table in config.stash.get(TABLES, []):
        terminalreporter.write_line(table)
