"""Trains the large grid of layouts and writes its table: ``python -m tests.grid_table FILE``, about 25 minutes on two cores.

Every rank imports this module anew, so it holds next to nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

SIZE = 150


def main() -> None:
    from tests.distributed.grid_runs import write_table

    sys.exit(not write_table(SIZE, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
