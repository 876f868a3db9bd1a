"""Our side of a comparison: one rank of the worker, unchanged, with a gate where it reads the batches of a step.

``python -m tests.benchmarks.ours ATTEMPT_DIR``, started by ``tests.benchmarks.sides``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

from orchestrator.worker.data.batches import Batch, BatchReader
from orchestrator.worker.train import run
from tests.benchmarks.gate import Gate, Stopped


def main() -> None:
    gate, read = Gate(), BatchReader.training_step

    def gated(reader: BatchReader, consumed_samples: int) -> list[Batch]:
        gate.step_begins()
        return read(reader, consumed_samples)

    with mock.patch.object(BatchReader, "training_step", gated):
        try:
            run(Path(sys.argv[1]))
        except Stopped:
            sys.stdout.flush()
            # Without destructors: the other ranks stop just as abruptly.
            os._exit(0)


if __name__ == "__main__":
    main()
