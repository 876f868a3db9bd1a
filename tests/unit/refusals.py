"""What a user is told who is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding


def refusal(action: Callable[[], object]) -> Finding:
    """The one finding with which ``action`` is refused; it says what to do."""
    with pytest.raises(ConfigurationError) as caught:
        action()
    (finding,) = caught.value.findings
    assert finding.fix
    return finding
