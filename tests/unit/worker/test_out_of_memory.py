"""Where memory ran out, by what the libraries say."""

from __future__ import annotations

import pytest

from orchestrator.worker.out_of_memory import MemoryWitness

NCCL = "NCCL error in: NCCLUtils.hpp:317, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"


@pytest.mark.parametrize(
    ("problem", "place"),
    [
        (RuntimeError("CUDA error: out of memory"), "device"),
        (RuntimeError(NCCL), "device"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "host"),
        (MemoryError(), "host"),
    ],
)
def test_the_place_is_read_from_the_words_of_torch_cuda_and_nccl(problem: Exception, place: str) -> None:
    memory = MemoryWitness().at_failure(problem)
    assert memory is not None
    assert memory["place"] == place


def test_another_failure_has_no_memory() -> None:
    assert MemoryWitness().at_failure(RuntimeError("NCCL error: unhandled system error")) is None
