"""How the whole suite runs on two cores, and what its tests measured, in the terminal's summary.

``pytest -n 2 --no-loadscope-reorder`` gives each of the two heavy groups to one process, so that tests with
many ranks never run beside others of their group, and then fills up with the quick ones, file by file. Plain ``pytest`` runs
one test after the other.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

_TABLES = pytest.StashKey[list[str]]()
_GROUPS = {"distributed": "ranks", "multihost": "hosts", "slurm": "hosts"}
"""Folder of tests -> what it keeps busy; the longest first."""
_OF_A_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")

# the same cases every time, however slow the machine is
settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_configure() -> None:
    """What the tests start finds the same surroundings everywhere.

    What a shell starts in the background ignores Ctrl-C, and so would every process that a test starts and interrupts.
    """
    for name in _OF_A_TERMINAL:
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm-256color"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes texts to print after the tests."""
    return pytestconfig.stash.setdefault(_TABLES, []).append


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Tests of one group, or of one file, go to one process."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            place = _place(nodeid)
            return list(_GROUPS.values())[place] if place < len(_GROUPS) else nodeid.split("::")[0]

    return Groups(config, log)


def _place(nodeid: str) -> int:
    """When a test starts: the number of its folder in ``_GROUPS``, or after all those."""
    folder = nodeid.split("/")[1]
    return list(_GROUPS).index(folder) if folder in _GROUPS else len(_GROUPS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of the suite hands its tables to the one that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tables"] = session.config.stash.get(_TABLES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    tables: list[str] = getattr(node, "workeroutput", {}).get("tables", [])
    node.config.stash.setdefault(_TABLES, []).extend(tables)  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for table in config.stash.get(_TABLES, []):
        terminalreporter.write_line(table)
