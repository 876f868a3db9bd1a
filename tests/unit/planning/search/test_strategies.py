from __future__ import annotations

import pytest

from orchestrator.planning.search.strategies import recommended


@pytest.mark.parametrize(
    ("num_parameters", "kinds"),
    [
        (124_000_000, "DP"),
        (1_000_000_000, "DP + PP"),
        (7_000_000_000, "DP + PP"),
        (70_000_000_000, "DP + PP + TP"),
        (175_000_000_000, "DP + PP + TP + ZeRO"),
        (1_000_000_000_000, "DP + PP + TP + ZeRO"),
    ],
)
def test_the_advice_for_a_size_is_the_tables(num_parameters: int, kinds: str) -> None:
    assert str(recommended(num_parameters)) == kinds
