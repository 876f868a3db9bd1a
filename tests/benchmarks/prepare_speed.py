"""``orchestrator prepare`` against tokenizers alone, on the same text and cores, in turn.

``python -m tests.benchmarks.prepare_speed FOLDER --megabytes 1000`` collects text files of this machine (repeated if too
few) as JSON lines in parts, trains a tokenizer on some of them, and takes each part twice: by the whole command, from
its start to its last checksum, and by ``encode_batch`` in one process with all threads, of which only those calls are timed, on
text that is in memory already. The ratio is of tokens a second, with a 95 % interval over the parts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from orchestrator.tokens.store import open_tokens
from tests.benchmarks.statistics import median_ratio

LARGEST_FILE = 2**20
ENDINGS = (".py", ".md", ".txt", ".rst", ".h", ".html")
BATCH = 256
TRAINED_ON = 10 * 10**6
ALONE = """
import json, sys, time
from itertools import islice
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
# a special token that a text spells out is text: prepare takes it so too
tokenizer.encode_special_tokens = True
seconds = tokens = 0
with open(sys.argv[1], encoding="utf-8") as file:
    while texts := [json.loads(line)["text"] for line in islice(file, int(sys.argv[3]))]:
        started = time.perf_counter()
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        seconds += time.perf_counter() - started
        tokens += sum(map(len, encodings)) + len(texts)
print(json.dumps({"tokens": tokens, "seconds": seconds}))
"""


def texts_of_the_machine() -> Iterator[str]:
    """Text files that are installed here, over and over."""
    roots = [Path(sys.prefix), Path("/usr/lib/python3"), Path("/usr/share"), Path("/usr/include")]
    files = [path for root in roots for path in sorted(root.rglob("*")) if path.suffix in ENDINGS and path.is_file()]
    for path in cycle(files):
        if 0 < path.stat().st_size <= LARGEST_FILE:
            text = path.read_text(encoding="utf-8", errors="ignore")
            if text.strip():
                yield text


def write_parts(folder: Path, *, megabytes: float, parts: int) -> list[Path]:
    """JSON lines of about ``megabytes`` of text in all."""
    texts = texts_of_the_machine()
    paths = [folder / f"part-{number:02d}.jsonl" for number in range(parts)]
    for path in paths:
        left = megabytes * 10**6 / parts
        with path.open("w", encoding="utf-8") as file:
            while left > 0:
                text = next(texts)
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                left -= len(text.encode())
    return paths


def train(part: Path, file: Path, vocab_size: int) -> None:
    """A byte-level BPE of some of the text."""
    from orchestrator.worker.data.tokenizer import train_tokenizer

    with part.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 3000)]
    train_tokenizer(islice(texts, max(1, TRAINED_ON * len(texts) // max(1, sum(map(len, texts))))), vocab_size, file)


def ours(part: Path, tokenizer: Path, output: Path) -> dict[str, Any]:
    """Tokens and seconds of the command, from its start to its end."""
    words = [f"prepare.input=[{part}]", f"prepare.output={output}", f"data.tokenizer_path={tokenizer}", "view=quiet"]
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "orchestrator", "prepare", *words, "output=json"], check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - started
    tokens = open_tokens(output).num_tokens
    shutil.rmtree(output)
    return {"tokens": tokens, "seconds": seconds}


def alone(part: Path, tokenizer: Path) -> dict[str, Any]:
    """Tokens and seconds of ``encode_batch``."""
    ended = subprocess.run(
        [sys.executable, "-c", ALONE, part, tokenizer, str(BATCH)], check=True, capture_output=True, text=True
    )
    measured: dict[str, Any] = json.loads(ended.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    parts = write_parts(options.folder, megabytes=options.megabytes, parts=options.parts)
    tokenizer = options.folder / "tokenizer.json"
    train(parts[0], tokenizer, options.vocab_size)
    pairs = []
    for number, part in enumerate(parts):
        # which comes first changes: the second finds the part in the page cache
        sides = [lambda part=part: ours(part, tokenizer, options.folder / "tokens"), lambda part=part: alone(part, tokenizer)]
        first, second = (sides[side]() for side in ((0, 1) if number % 2 else (1, 0)))
        pair = (first, second) if number % 2 else (second, first)
        assert pair[0]["tokens"] == pair[1]["tokens"], "both sides make the same tokens"
        pairs.append(pair)
        if not options.json:
            rates = [side["tokens"] / side["seconds"] for side in pair]
            print(
                f"{part.name}: prepare {rates[0] / 1e3:.0f} K tokens/s, encode_batch {rates[1] / 1e3:.0f} K tokens/s",
                flush=True,
            )
    ratio = median_ratio(*([side["tokens"] / side["seconds"] for side in sides] for sides in zip(*pairs, strict=True)))
    cores = len(os.sched_getaffinity(0))
    if options.json:
        totals = [
            {key: sum(side[key] for side in sides) for key in ("tokens", "seconds")} for sides in zip(*pairs, strict=True)
        ]
        report = {"ratio": ratio.median, "lower": ratio.lower, "upper": ratio.upper, "prepare": totals[0], "alone": totals[1]}
        print(json.dumps({**report, "cores": cores}))
    else:
        print(f"prepare / encode_batch, tokens a second on {cores} cores: {ratio}")


if __name__ == "__main__":
    main()
