"""Reads parquet files and Hugging Face datasets saved on disk, row by row, in chunks of about equal size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigurationError
from orchestrator.findings import error
from orchestrator.worker.data.chunks import CHUNK_BYTES, Chunk, Form, InputFile, Place, unreadable

if TYPE_CHECKING:
    import pyarrow

DATASET_STATE = "state.json"
DATASET_SPLITS = "dataset_dict.json"
_MOST_ROWS = 2**14


def parquet_chunks(file: InputFile, start: Place, *, columns: Sequence[str], field: str) -> Iterator[Chunk]:
    """The rows of a parquet file from ``start``.

    Raises:
        ConfigurationError: it is none, or lacks a column.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path) as source:
            _require_columns(file.path, source.schema_arrow.names, columns)
            begin = 0
            for number in range(source.num_row_groups):
                group = source.metadata.row_group(number)
                if begin + group.num_rows > start.offset:
                    rows = _rows_of_a_chunk(group.total_byte_size, group.num_rows)
                    batches = source.iter_batches(rows, row_groups=[number], columns=list(columns))
                    yield from _chunks(file, start, batches, columns, begin=begin, num_rows=source.metadata.num_rows)
                begin += group.num_rows
    except (OSError, pyarrow.ArrowException) as problem:
        raise unreadable(file.path, problem, field=field) from None


def arrow_chunks(file: InputFile, start: Place, *, columns: Sequence[str], field: str) -> Iterator[Chunk]:
    """The rows of one arrow file of a dataset from ``start``.

    Raises:
        ConfigurationError: it is none, or lacks a column.
    """
    import pyarrow

    try:
        with pyarrow.memory_map(str(file.path)) as source, pyarrow.ipc.open_stream(source) as stream:
            _require_columns(file.path, stream.schema.names, columns)
            begin = 0
            for batch in stream:
                wanted = batch.select(list(columns))
                rows = _rows_of_a_chunk(wanted.nbytes, wanted.num_rows)
                parts = (wanted.slice(first, rows) for first in range(0, wanted.num_rows, rows))
                yield from _chunks(file, start, parts, columns, begin=begin, num_rows=0, position=source.tell())
                begin += batch.num_rows
    except (OSError, pyarrow.ArrowException) as problem:
        raise unreadable(file.path, problem, field=field) from None


def dataset_files(folder: Path, *, field: str) -> list[Path]:
    """The arrow files of a dataset that ``save_to_disk`` left, in their order; of several splits, one must be named.

    Raises:
        ConfigurationError: the folder is not whole, or leaves a choice of splits.
    """
    try:
        if (folder / DATASET_SPLITS).is_file():
            splits = json.loads((folder / DATASET_SPLITS).read_text(encoding="utf-8"))["splits"]
            if len(splits) != 1:
                message = f"{folder} has the splits {', '.join(splits)}: text to train on must not hold what is tested on"
                named = ", ".join(str(folder / split) for split in splits)
                raise ConfigurationError([error("prepare-input", field, message, f"name the folders to read of {named}")])
            folder = folder / splits[0]
        state = json.loads((folder / DATASET_STATE).read_text(encoding="utf-8"))
        if state.get("_indices_data_files"):
            message = f"{folder} is a selection that was saved as such"
            fix = "save it again with dataset.flatten_indices().save_to_disk(DIR)"
            raise ConfigurationError([error("prepare-input", field, message, fix)])
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise unreadable(folder, f"{problem!r} in its {DATASET_STATE}", field=field) from None


def _chunks(
    file: InputFile,
    start: Place,
    batches: Iterator[pyarrow.RecordBatch],
    columns: Sequence[str],
    *,
    begin: int,
    num_rows: int,
    position: int = 0,
) -> Iterator[Chunk]:
    """Chunks of ``batches``, of which the first begins with row ``begin``; those before ``start`` are passed over."""
    for batch in batches:
        end = begin + batch.num_rows
        if begin >= start.offset:
            yield Chunk(
                form=Form.rows,
                file=str(file.path),
                content=tuple(_values(batch.column(name)) for name in columns),
                after=Place(file=start.file, offset=end, number=end + 1),
                disk_bytes=position or file.size * end // num_rows,
                number=begin + 1,
            )
        begin = end


def _values(column: pyarrow.Array) -> list[Any]:
    """Text as bytes, undecoded, so that one wrong row is one bad document; anything else as Python has it."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pyarrow.types.is_string_view(column.type):
        column = column.cast(pyarrow.large_string())
    if pyarrow.types.is_string(column.type):
        column = column.cast(pyarrow.binary())
    elif pyarrow.types.is_large_string(column.type):
        column = column.cast(pyarrow.large_binary())
    values: list[Any] = column.to_pylist()
    return values


def _rows_of_a_chunk(num_bytes: int, num_rows: int) -> int:
    return max(1, min(_MOST_ROWS, CHUNK_BYTES * num_rows // max(1, num_bytes)))


def _require_columns(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in names]
    if missing:
        message = f"{path} has no column {missing[0]!r}; it has {', '.join(names)}"
        fix = "name the columns with prepare.text_field, or prepare.prompt_field and prepare.answer_field"
        raise ConfigurationError([error("prepare-field", "prepare.text_field", message, fix)])
