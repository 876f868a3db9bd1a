"""The process behind ``export``: ``python -m orchestrator.worker.export REQUEST.json``.

Makes a Hugging Face folder of a checkpoint of any layout, one file of it in memory at a time. The folder gets its name when it
is complete; the process leaves ``result.json``, or ``failure_rank_0.json``, beside the request.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orchestrator.checkpoints.catalogue import Manifest, complete_checkpoints
from orchestrator.checkpoints.export_request import RESULT, ExportRequest, read_request
from orchestrator.config.enums import AttentionImplementation, Precision
from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.models.causal_lm import CausalLM
from orchestrator.models.layers import LayerShapes
from orchestrator.models.recompute import Recompute
from orchestrator.models.shards import hf_parameter
from orchestrator.models.tensor_parallel.group import TensorParallelGroup
from orchestrator.planning.model_spec import ModelSpec, model_spec_from_hf
from orchestrator.run_dir import write_json
from orchestrator.units import format_bytes
from orchestrator.worker.engine import TORCH_DTYPES
from orchestrator.worker.failure import write_failure
from orchestrator.worker.hf_folder import TensorSize, write_config, write_tokenizer, write_weights
from orchestrator.worker.merge import TIED, FlatPartitions, LayerFiles, LocalWeights, ModuleFiles, NamedParameter, merged
from orchestrator.worker.progress import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What of a checkpoint's layout decides where its weights are."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    zero_stage: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the request named on the command line; the exit code is 0, 1 if it failed, 2 if none is named."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print("usage: python -m orchestrator.worker.export REQUEST.json", file=sys.stderr)
        return 2
    request_file = Path(words[0])
    # who is asked to end takes the half-made folder away
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        write_json(request_file.parent / RESULT, export(read_request(request_file)))
    except BaseException as problem:
        write_failure(request_file.parent, problem)
        traceback.print_exc()
        return 1
    return 0


def export(request: ExportRequest) -> dict[str, Any]:
    """Write the folder; returns what ``result.json`` says.

    Raises:
        ConfigurationError: the checkpoint has gone, or the folder exists by now.
    """
    output = Path(request.output)
    manifest = _manifest(Path(request.checkpoint))
    spec = model_spec_from_hf(
        manifest.hf_config, name=manifest.model_name, attention_implementation=AttentionImplementation.eager, dropout=0.0
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    try:
        result = _write(request, manifest, spec, scratch)
        scratch.chmod(0o755)
        _rename(scratch, output)
    except FileNotFoundError:
        # a run that goes on may have removed it meanwhile, for being old
        _manifest(Path(request.checkpoint))
        raise
    finally:
        # it has its name by now if all went well
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _write(request: ExportRequest, manifest: Manifest, spec: ModelSpec, folder: Path) -> dict[str, Any]:
    dtype = TORCH_DTYPES[Precision(request.dtype)]
    layout = Layout(
        tensor_parallel_size=manifest.layout["tensor_parallel_size"],
        pipeline_parallel_size=manifest.layout["pipeline_parallel_size"],
        zero_stage=manifest.zero_stage,
    )
    wants_masters = dtype == torch.float32 and manifest.dtype != Precision.fp32
    weights = _weights(Path(request.checkpoint), layout, masters=wants_masters)
    parameters = _by_hf_name(spec, layout.tensor_parallel_size)
    sizes = [
        TensorSize(name=name, num_bytes=dtype.itemsize * torch.Size(parts[0].hf.shape).numel())
        for name, parts in parameters.items()
    ]
    total = sum(size.num_bytes for size in sizes)
    say(f"export: {len(sizes)} tensors, {format_bytes(total)} in {request.dtype}")

    def tensor(name: str) -> Tensor:
        return merged(parameters[name], weights, tensor_parallel_size=layout.tensor_parallel_size, dtype=dtype)

    files = write_weights(folder, sizes, tensor, max_shard_bytes=request.max_shard_bytes)
    write_config(folder, manifest.hf_config, dtype=dtype)
    if request.tokenizer is not None:
        write_tokenizer(folder, Path(request.tokenizer), max_length=spec.max_position_embeddings)
    return {"num_tensors": len(sizes), "num_bytes": total, "files": files}


def _weights(folder: Path, layout: Layout, *, masters: bool) -> LocalWeights:
    """The reader of a checkpoint; ``masters`` asks for the optimizer's fp32 weights rather than those of the computation."""
    partitions = FlatPartitions(
        folder,
        zero_stage=layout.zero_stage,
        tensor_parallel_size=layout.tensor_parallel_size,
        stages=layout.pipeline_parallel_size,
    )
    if layout.zero_stage == 3:
        return partitions
    computed = LayerFiles(folder) if layout.pipeline_parallel_size > 1 else ModuleFiles(folder)
    return FirstOf(partitions, computed) if masters and layout.zero_stage > 0 else computed


class FirstOf(LocalWeights):
    """The optimizer's weights, and for what it does not own (frozen parameters) those of the computation."""

    def __init__(self, owned: LocalWeights, others: LocalWeights) -> None:
        self._owned = owned
        self._others = others

    def local(self, parameter: NamedParameter, rank: int) -> Tensor:
        try:
            return self._owned.local(parameter, rank)
        except KeyError:
            return self._others.local(parameter, rank)


def _by_hf_name(spec: ModelSpec, tensor_parallel_size: int) -> dict[str, list[NamedParameter]]:
    """Hugging Face's tensors in the order of the layers, each with the parameters of ours that are parts of it."""
    shapes = LayerShapes(spec=spec, group=TensorParallelGroup(size=tensor_parallel_size))
    model = CausalLM(shapes, None, Recompute(), None)
    found: dict[str, list[NamedParameter]] = {}
    # a tied module comes first in the module, and its layer is the embedding, which comes first in the model
    for name, parameter in model.named_parameters():
        hf = hf_parameter(parameter)
        layer = 0 if name.startswith(TIED) else int(name.partition(".")[0])
        found.setdefault(hf.name, []).append(NamedParameter(name=name, layer=layer, hf=hf))
    return dict(sorted(found.items(), key=lambda item: item[1][0].layer))


def _manifest(path: Path) -> Manifest:
    for checkpoint in complete_checkpoints(path.parent):
        if checkpoint.tag == path.name:
            return checkpoint.manifest
    message = f"{path} is no complete checkpoint any more"
    raise ConfigurationError([error("export-checkpoint", "export.tag", message, "export another checkpoint of the run")])


def _rename(scratch: Path, output: Path) -> None:
    """Give the folder its name; whatever has it by now stays as it is."""
    if os.path.lexists(output):
        message = f"{output} exists by now, and nothing is overwritten"
        raise ConfigurationError([error("export-output", "export.output", message, "name a folder that does not exist")])
    scratch.rename(output)


if __name__ == "__main__":
    sys.exit(main())
