"""Compiles the DeepSpeed ops the tests load, once: ``python -m tests.build_ops``.

A lock that a killed build left behind would make DeepSpeed wait for ever; nothing else builds here, so it is removed.
"""

from __future__ import annotations

import os
from multiprocessing import get_context
from pathlib import Path

_OPS = ("ShareMemCommBuilder", "CPUAdamBuilder", "CPULionBuilder", "CPUAdagradBuilder")
_AT_ONCE = 2
"""Each of these is one large source file, which one core compiles. NVMe's has many files, and takes all cores by itself."""


def main() -> None:
    for lock in Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("*/lock"):
        lock.unlink()
    with get_context("spawn").Pool(_AT_ONCE) as pool:
        for name in pool.imap_unordered(_build, _OPS):
            print(f"{name} is built", flush=True)
    print(f"{_build('AsyncIOBuilder')} is built")


def _build(builder: str) -> str:
    from deepspeed.ops import op_builder
    from deepspeed.ops.op_builder import cpu

    found = getattr(cpu, builder, None) or getattr(op_builder, builder)
    found().load(verbose=False)
    return str(found.NAME)


if __name__ == "__main__":
    main()
