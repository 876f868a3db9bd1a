"""A folder of safetensors weights as its headers describe it: which tensors, of which shape, in which file, and what is wrong.

The format (https://github.com/huggingface/safetensors): eight bytes with the little-endian length of the header, the header,
a JSON object that gives each tensor's dtype, shape and place among the bytes, and then the bytes. Only headers are read here.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.findings import Finding, error, info

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FIELD = "model.pretrained"
_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 100_000_000
_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_FLOATING = ("F64", "F32", "F16", "BF16")
_HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(bias|masked_bias)|lm_head\.weight|embed_out\.weight)$")
"""Tensors that older folders carry beside the parameters: rotary frequencies, causal masks, the copy of a tied embedding."""
_SHOWN_EXTRAS = 5
_COPY_AGAIN = "copy the file again from where the folder came from"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a safetensors file; ``dtype`` as the format spells it (``BF16``)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """What the readable files of a folder hold. ``unreadable`` maps tensors of the index to the file that cannot be read."""

    folder: Path
    tensors: Mapping[str, StoredTensor]
    unreadable: Mapping[str, Path]

    def find(self, name: str) -> StoredTensor | None:
        """A tensor by its name in the causal language model; folders of the bare decoder leave its first part out."""
        return self.tensors.get(name) or self.tensors.get(_bare(name))

    def is_unreadable(self, name: str) -> bool:
        """Whether the tensor is in a file that a finding already speaks of."""
        return name in self.unreadable or _bare(name) in self.unreadable


def read_weights(folder: Path) -> tuple[StoredWeights | None, list[Finding]]:
    """The tensors of a Hugging Face folder, and a finding for each file that is missing, cut short or unreadable.

    None when the folder has no safetensors at all.
    """
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError as problem:
        message = f"cannot read the folder {folder}: {problem.strerror}"
        return None, [error("pretrained-folder", FIELD, message, "name a local Hugging Face folder with safetensors")]
    if WEIGHTS in names:
        return _read_files(folder, {WEIGHTS: ()})
    if INDEX in names:
        files, findings = _files_of_index(folder)
        if findings:
            return None, findings
        return _read_files(folder, files)
    return None, [_no_safetensors(folder, names)]


def weight_findings(folder: Path, expected: Iterable[tuple[str, tuple[int, ...]]], *, family: str) -> list[Finding]:
    """Everything that keeps the weights in ``folder`` from being those of a model; ``info`` for tensors that are left over.

    ``expected`` are the Hugging Face names and shapes of the model's parameters, a tied one once; ``family`` is for messages.
    """
    stored, findings = read_weights(folder)
    if stored is None:
        return findings
    expected = list(expected)
    found = {name: stored.find(name) for name, _ in expected}
    if not findings and not any(found.values()):
        first, own = expected[0][0], next(iter(stored.tensors), "none")
        message = f"{folder} holds no tensor of a {family} model: {first} is not there, its first tensor is {own}"
        return [error("pretrained-family", FIELD, message, f"name the folder of a {family} model, or choose its own model")]
    for name, shape in expected:
        tensor = found[name]
        if tensor is not None:
            findings += _tensor_findings(tensor, name, shape)
        elif not stored.is_unreadable(name):
            message = f"tensor {name} {list(shape)} is in no file of {folder}"
            findings.append(error("pretrained-missing", FIELD, message, "name a folder with all tensors of the model"))
    used = {tensor.name for tensor in found.values() if tensor is not None}
    extras = [name for name in stored.tensors if name not in used and not _HARMLESS.search(name)]
    if extras:
        shown = ", ".join(extras[:_SHOWN_EXTRAS]) + (", ..." if len(extras) > _SHOWN_EXTRAS else "")
        message = f"{len(extras)} tensors in {folder} are none of the model's and are left out: {shown}"
        findings.append(info("pretrained-extra", FIELD, message, "make sure that it is the folder you mean"))
    return findings


def _bare(name: str) -> str:
    return name.partition(".")[2]


def _tensor_findings(tensor: StoredTensor, name: str, shape: tuple[int, ...]) -> Iterator[Finding]:
    if tensor.shape != tuple(shape):
        message = f"tensor {name} in {tensor.file} has the shape {list(tensor.shape)}, the model's has {list(shape)}"
        yield error("pretrained-shape", FIELD, message, "choose the model that the folder's config.json describes")
    if tensor.dtype not in _FLOATING:
        message = f"tensor {name} in {tensor.file} has the format {tensor.dtype}; weights are one of {', '.join(_FLOATING)}"
        yield error("pretrained-dtype", FIELD, message, "name a folder whose weights are not quantized")


def _no_safetensors(folder: Path, names: set[str]) -> Finding:
    pickled = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth")))
    if not pickled:
        message = f"{folder} has neither {WEIGHTS} nor {INDEX}"
        return error("pretrained-files", FIELD, message, "name a local Hugging Face folder with safetensors")
    message = f"{folder} has no safetensors, only {pickled[0]}, which may run code when it is read"
    fix = (
        "convert it where you trust it: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), "
        "and name the new folder"
    )
    return error("pretrained-files", FIELD, message, fix)


def _files_of_index(folder: Path) -> tuple[dict[str, tuple[str, ...]], list[Finding]]:
    """The files that the index names, each with its tensors."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        tensors = dict(index["weight_map"])
    except OSError as problem:
        return {}, [error("pretrained-index", FIELD, f"cannot read {path}: {problem.strerror}", _COPY_AGAIN)]
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"{path} is no index: it needs a weight_map from tensors to files"
        return {}, [error("pretrained-index", FIELD, message, _COPY_AGAIN)]
    files: dict[str, tuple[str, ...]] = {}
    for tensor, file in tensors.items():
        if not isinstance(file, str) or Path(file).name != file:
            message = f"{path} says that tensor {tensor} is in {file!r}, which is no file of the folder"
            return {}, [error("pretrained-index", FIELD, message, _COPY_AGAIN)]
        files[file] = (*files.get(file, ()), tensor)
    return files, []


def _read_files(folder: Path, files: Mapping[str, tuple[str, ...]]) -> tuple[StoredWeights, list[Finding]]:
    """``files`` maps each file to the tensors it has to hold."""
    tensors: dict[str, StoredTensor] = {}
    unreadable: dict[str, Path] = {}
    findings = []
    for name, indexed in files.items():
        path = folder / name
        try:
            held = {tensor.name: tensor for tensor in read_header(path)}
        except SafetensorsError as problem:
            unreadable |= dict.fromkeys(indexed, path)
            findings.append(_file_finding(path, indexed, str(problem)))
            continue
        tensors |= {tensor: entry for tensor, entry in held.items() if tensor not in tensors or tensor in indexed}
        for tensor in indexed:
            if tensor not in held:
                unreadable[tensor] = path
                message = f"{folder / INDEX} says that tensor {tensor} is in {path}, and it is not there"
                findings.append(error("pretrained-index", FIELD, message, _COPY_AGAIN))
    return StoredWeights(folder=folder, tensors=tensors, unreadable=unreadable), findings


def _file_finding(path: Path, tensors: tuple[str, ...], problem: str) -> Finding:
    holds = f"; it should hold tensor {tensors[0]}" if tensors else ""
    others = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return error("pretrained-file", FIELD, f"{path} {problem}{holds}{others}", _COPY_AGAIN)


class SafetensorsError(ValueError):
    """A file is no complete safetensors file; the text goes on after the file's name."""


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file.

    Raises:
        SafetensorsError: it is missing, cut short, or its header contradicts itself or the file's size.
    """
    try:
        size = _regular_size(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LARGEST_HEADER_BYTES):
                raise SafetensorsError(f"is cut short or no safetensors file: {size} bytes, and a header of {length} announced")
            header = json.loads(file.read(length).decode("utf-8"))
    except OSError as problem:
        raise SafetensorsError(f"cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, SafetensorsError):
            raise
        raise SafetensorsError("has a header that is not JSON") from None
    if not isinstance(header, dict):
        raise SafetensorsError("has a header that is no JSON object")
    entries = [_entry(path, name, value) for name, value in header.items() if name != "__metadata__"]
    end = max((stop for _, stop in entries), default=0) + _LENGTH_BYTES + length
    if size != end:
        state = "is cut short" if size < end else "has more bytes than its header says"
        last = max(entries, key=lambda entry: entry[1])[0].name if entries else "none"
        raise SafetensorsError(f"{state}: {size} bytes, and its header announces {end} (the last tensor is {last})")
    return [tensor for tensor, _ in entries]


def _regular_size(path: Path) -> int:
    """Bytes of a file; a pipe or a device would be read for ever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise SafetensorsError("is no file")
    if not os.access(path, os.R_OK):
        raise SafetensorsError("may not be read")
    return status.st_size


def _entry(path: Path, name: str, value: Any) -> tuple[StoredTensor, int]:
    """A tensor of a header, and where its bytes end."""
    try:
        dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
        numbers = [*shape, start, stop]
        if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise SafetensorsError(f"has a header whose entry {name!r} is damaged") from None
    if dtype in _DTYPE_BYTES and stop - start != math.prod(shape) * _DTYPE_BYTES[dtype]:
        raise SafetensorsError(f"contradicts itself: tensor {name} {shape} of {dtype} has {stop - start} bytes")
    return StoredTensor(name=name, file=path, dtype=dtype, shape=tuple(shape)), stop
