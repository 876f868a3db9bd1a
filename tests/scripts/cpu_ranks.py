"""Several ranks on a CPU for accelerate, which knows DeepSpeed on devices only and takes each process for the only one."""

from __future__ import annotations

import os

from accelerate.state import DistributedType, PartialState

if os.environ.get("DS_ACCELERATOR") == "cpu":
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)
