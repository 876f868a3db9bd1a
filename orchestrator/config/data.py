"""Options of the data: where the tokens come from, how sequences are made of them, and how they are prepared."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.config.enums import DataSource, Packing, TextFormat


@dataclass(kw_only=True, slots=True)
class MixtureSource:
    """One source of a mixture."""

    path: str | None = None
    """Prepared tokens: a folder of orchestrator prepare, or Megatron's ``.bin``/``.idx`` without the ending."""
    weight: float = 1.0
    """Its share of the training sequences is its weight divided by the sum of all weights."""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """The text, how it becomes tokens, and what is held out."""

    source: DataSource = DataSource.python_stdlib
    """python_stdlib: this Python's own library; text: files under path; tokens: prepared ones; mixture; synthetic: random."""
    path: str | None = None
    """text: a file, or a folder whose files are read in sorted order; tokens: a folder of orchestrator prepare, or Megatron's
    ``.bin``/``.idx`` without the ending."""
    sources: dict[str, MixtureSource] = field(default_factory=dict)
    """mixture: its sources by name (``data.sources.books.path=/data/books data.sources.books.weight=0.7``)."""
    evaluation: dict[str, str] = field(default_factory=dict)
    """Further sets to measure the held-out loss on, name to prepared tokens (``data.evaluation.code=/data/code``)."""
    packing: Packing = Packing.stream
    """stream: sequences are cut from the joined documents, without padding; whole_documents: each holds as many documents, in
    their order, as fit uncut, and padding (a document longer than a sequence is cut into several)."""
    reset_at_documents: bool = False
    """Attention and positions start anew at each document of a sequence, and no token is predicted from another document."""
    file_suffixes: list[str] = field(default_factory=lambda: [".txt", ".md", ".py"])
    """Files of a folder that count, by the end of their name (source text)."""
    cache_dir: str = "~/.cache/orchestrator/data"
    """Where tokenizers and token files are kept; each host needs its own or a shared one."""
    tokenizer_path: str | None = None
    """A ``tokenizer.json``, or a folder that has one; null = a byte-level BPE is trained on the text."""
    tokenizer_vocab_size: int = 4096
    """Entries of the tokenizer that is trained; at most model.vocab_size."""
    max_bytes: int | None = None
    """Read at most so many bytes of text; null = all."""
    sequence_length: int = 1024
    """Tokens of one training sequence."""
    held_out_fraction: float = 0.02
    """Share of the sequences of each source that is never trained on."""
    synthetic_tokens: int = 1_000_000
    """Length of the random token stream (source synthetic)."""
    ignore_fraction: float = 0.0
    """Share of the labels that is ignored, chosen at random from the seed (source synthetic)."""


@dataclass(kw_only=True, slots=True)
class PrepareConfig:
    """``prepare``: from text to token files. The tokenizer is ``data.tokenizer_path``; null trains one on the text."""

    check: bool = False
    """Make nothing: read the token files of output again and compare them with their checksums."""
    input: list[str] = field(default_factory=list)
    """Files and folders to read, in this order; what is in a folder is read in sorted order. JSON lines and text that end in
    .gz or .zst are unpacked."""
    output: str | None = None
    """Folder of the token files. One that is there is gone on with, if it was made from the same."""
    format: TextFormat = TextFormat.auto
    """What the input is; auto = by the ending of each file: .jsonl, .ndjson, .parquet, data.file_suffixes for text; a dataset
    is a folder. jsonl reads the .json of a folder that has no .jsonl."""
    text_field: str = "text"
    """Field or column that holds the text (jsonl, parquet, dataset)."""
    prompt_field: str | None = None
    """Field that holds a prompt; with answer_field, and the loss is then on the answer only."""
    answer_field: str | None = None
    """Field that holds the answer to the prompt."""
    processes: int | None = None
    """Processes that make tokens; null = one for each core this may use. The tokens do not depend on it."""
    shard_tokens: int = 100_000_000
    """Tokens of one token file: it ends with the group of documents, about 1 MiB, that reaches so many. One that is complete
    is not made again."""
    max_bad_fraction: float = 0.0
    """Share of the documents that may be unreadable and left out, 0 to 1; each is counted and named."""
