"""Compiles the DeepSpeed ops the tests load, once: ``python -m tests.build_ops``.

A lock that a killed build left behind would make DeepSpeed wait for ever; nothing else builds here, so it is removed.
"""

from __future__ import annotations

import os
from pathlib import Path


def main() -> None:
    for lock in Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("*/lock"):
        lock.unlink()
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.ops.op_builder.cpu import CPUAdagradBuilder, CPUAdamBuilder, CPULionBuilder, ShareMemCommBuilder

    for builder in (ShareMemCommBuilder, CPUAdamBuilder, CPULionBuilder, CPUAdagradBuilder, AsyncIOBuilder):
        builder().load(verbose=False)
        print(f"{builder.NAME} is built")


if __name__ == "__main__":
    main()
