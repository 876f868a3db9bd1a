"""The input of ``prepare``: which files it is made of, in which order, and how each is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from orchestrator.config.enums import TextFormat
from orchestrator.errors import ConfigurationError
from orchestrator.findings import Finding, error
from orchestrator.worker.data.chunks import Chunk, InputFile, Place
from orchestrator.worker.data.folders import files_below, same_file
from orchestrator.worker.data.plain_files import ZSTANDARD, line_chunks, text_chunks, uncompressed_name
from orchestrator.worker.data.tables import DATASET_SPLITS, DATASET_STATE, arrow_chunks, dataset_files, parquet_chunks

FIELD = "prepare.input"
_ENDINGS: Mapping[str, TextFormat] = {
    ".jsonl": TextFormat.jsonl,
    ".ndjson": TextFormat.jsonl,
    ".parquet": TextFormat.parquet,
}
"""What a file is by the end of its name; text by ``data.file_suffixes``. A dataset is a folder."""
_PATTERN = frozenset("*?")
_AMBIGUOUS = ".json"
"""May be lines of JSON or anything else: it counts in a folder that is said to hold such lines and has no surer ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Files in the order they are read. ``left_out`` counts the other files of the folders by the ends of their names."""

    files: tuple[InputFile, ...]
    left_out: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    def chunks(self, start: Place, fields: Sequence[str]) -> Iterator[Chunk]:
        """The input from ``start``.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        for number in range(start.file, len(self.files)):
            file = self.files[number]
            place = start if number == start.file else Place(file=number)
            if file.format is TextFormat.text:
                yield from text_chunks(file, place, field=FIELD)
            elif file.format is TextFormat.jsonl:
                yield from line_chunks(file, place, field=FIELD)
            elif file.format is TextFormat.parquet:
                yield from parquet_chunks(file, place, columns=fields, field=FIELD)
            else:
                yield from arrow_chunks(file, place, columns=fields, field=FIELD)


def find_inputs(paths: Sequence[Path], format: TextFormat, *, text_endings: Sequence[str], has_answers: bool = False) -> Inputs:
    """The files of ``paths``; a folder is read in sorted order, with the folders in it.

    Raises:
        ConfigurationError: a path is missing or cannot be read, there is no text at all, or text where a prompt is wanted.
    """
    files: list[InputFile] = []
    left_out: Counter[str] = Counter()
    findings: list[Finding] = []
    for path in paths:
        try:
            if path.is_file():
                files.append(_input_file(path, _format_of(path, format, text_endings)))
            else:
                files += _in_folder(path, format, text_endings, left_out)
        except ConfigurationError as problem:
            findings += problem.findings
        except OSError as problem:
            message = f"{problem.filename or path} cannot be read: {problem.strerror}"
            findings.append(error("prepare-input", FIELD, message, "name what can be read"))
    if not findings and not any(file.size for file in files):
        names = ", ".join(map(str, paths))
        seen = f"; there is {_listed(left_out)}" if left_out else ""
        message = f"{names} holds no text in files that end in {', '.join([*_ENDINGS, *text_endings])}{seen}"
        fix = "name other files, or say what they are: prepare.format=jsonl reads .json, data.file_suffixes names text"
        findings.append(error("prepare-input", FIELD, message, fix))
    findings += _taken_for_text(text_endings, format)
    findings += _missing_library(files)
    findings += _read_twice(files)
    text = next((file for file in files if file.format is TextFormat.text), None)
    if has_answers and text is not None:
        message = f"{text.path} is plain text, which has no fields for a prompt and an answer"
        findings.append(error("prepare-field", "prepare.prompt_field", message, "leave text out, or prepare it by itself"))
    if findings:
        raise ConfigurationError(findings)
    return Inputs(files=tuple(files), left_out=dict(left_out))


def _in_folder(path: Path, format: TextFormat, text_endings: Sequence[str], left_out: Counter[str]) -> Iterator[InputFile]:
    if not path.is_dir():
        message = f"{path} {'is neither a file nor a folder' if path.exists() else 'does not exist'}"
        is_pattern = not _PATTERN.isdisjoint(path.name)
        fix = "name the folder: * and ? stand for themselves" if is_pattern else "name a file or a folder with text"
        raise ConfigurationError([error("prepare-input", FIELD, message, fix)])
    if _is_dataset(path):
        if format not in (TextFormat.auto, TextFormat.dataset):
            fix = "leave prepare.format at auto, or set it to dataset"
            raise ConfigurationError(
                [error("prepare-format", "prepare.format", f"{path} is a saved dataset, no {format}", fix)]
            )
        yield from (_input_file(file, TextFormat.dataset) for file in dataset_files(path, field=FIELD))
        return
    if format is TextFormat.dataset:
        message = f"{path} is no Hugging Face dataset that save_to_disk left: it has no {DATASET_STATE}"
        raise ConfigurationError([error("prepare-format", "prepare.format", message, "name the folder of the dataset itself")])
    found = {file: _by_ending(file, text_endings) for file in files_below(path)}
    if format is TextFormat.jsonl and TextFormat.jsonl not in found.values():
        found |= {file: TextFormat.jsonl for file in found if uncompressed_name(file).endswith(_AMBIGUOUS)}
    if format is TextFormat.auto:
        _require_one_kind(path, found)
    for file, kind in found.items():
        if kind is not None and format in (TextFormat.auto, kind):
            yield _input_file(file, kind)
        else:
            left_out[_ending(file)] += 1


def _require_one_kind(folder: Path, found: Mapping[Path, TextFormat | None]) -> None:
    """A README beside lines of JSON is hardly meant to be trained on, and is not left out unsaid."""
    text = next((file for file, kind in found.items() if kind is TextFormat.text), None)
    other = next((file for file, kind in found.items() if kind not in (TextFormat.text, None)), None)
    if text is not None and other is not None:
        message = f"{folder} holds plain text ({text.name}) beside {found[other]} ({other.name})"
        fix = f"say which is to be read: prepare.format={found[other]} or prepare.format=text; or name the files"
        raise ConfigurationError([error("prepare-format", "prepare.format", message, fix)])


def _format_of(path: Path, format: TextFormat, text_endings: Sequence[str]) -> TextFormat:
    """The format of a file that was named itself: what the user says it is, or its ending."""
    if format is TextFormat.dataset:
        fix = "name the folder that dataset.save_to_disk wrote"
        raise ConfigurationError([error("prepare-format", "prepare.format", f"{path} is a file, a dataset is a folder", fix)])
    found = _by_ending(path, text_endings) if format is TextFormat.auto else format
    if found is None:
        message = f"{path} does not say by its ending what it is"
        raise ConfigurationError(
            [error("prepare-format", "prepare.format", message, "set prepare.format to jsonl, parquet or text")]
        )
    return found


def _by_ending(path: Path, text_endings: Sequence[str]) -> TextFormat | None:
    name = uncompressed_name(path)
    if name.endswith(tuple(text_endings)):
        return TextFormat.text
    return next((format for ending, format in _ENDINGS.items() if name.endswith(ending)), None)


def _ending(path: Path) -> str:
    """How the name of a file ends, that of its compression included."""
    name = uncompressed_name(path)
    return Path(name).suffix + path.name.removeprefix(name) or path.name


def _is_dataset(path: Path) -> bool:
    return (path / DATASET_STATE).is_file() or (path / DATASET_SPLITS).is_file()


def _input_file(path: Path, format: TextFormat) -> InputFile:
    status = path.stat()
    return InputFile(path=path.absolute(), format=format, size=status.st_size, mtime_ns=status.st_mtime_ns)


def _taken_for_text(text_endings: Sequence[str], format: TextFormat) -> Iterator[Finding]:
    """Braces and names of fields are hardly meant to be trained on."""
    for ending in text_endings if format is TextFormat.auto else ():
        if ending in _ENDINGS:
            message = f"{ending} would be read as plain text, and is {_ENDINGS[ending]}"
            fix = "leave it out of data.file_suffixes, or set prepare.format=text if it is text all the same"
            yield error("prepare-format", "data.file_suffixes", message, fix)


def _read_twice(files: Sequence[InputFile]) -> Iterator[Finding]:
    """Text that is there twice without anybody having asked for it is learnt by heart."""
    same = same_file([file.path for file in files])
    if same is not None:
        message = f"{same[0]} would be read twice" if same[0] == same[1] else f"{same[0]} and {same[1]} are the same file"
        yield error("prepare-input", FIELD, message, "name it once; to train on it more often, give it a weight in a mixture")


def _missing_library(files: Sequence[InputFile]) -> Iterator[Finding]:
    tables = (TextFormat.parquet, TextFormat.dataset)
    needy = next((file for file in files if file.format in tables or file.path.suffix == ZSTANDARD), None)
    if needy is not None and find_spec("pyarrow") is None:
        message = f"{needy.path} can only be read with pyarrow, which is not installed"
        yield error("prepare-library", FIELD, message, "pip install 'orchestrator[data]'")


def _listed(left_out: Counter[str]) -> str:
    return ", ".join(f"{count} x {ending}" for ending, count in left_out.most_common(5))
