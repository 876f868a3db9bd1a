"""A thousand generated hostfiles and filters beside DeepSpeed's own reader: we never accept more, or read differently."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.findings import has_error
from orchestrator.launch.host_filter import filtered_hosts
from orchestrator.launch.hostfile import LocalNames, parse_hostfile, read_hostfile

NUM_CASES = 1000
STRICTER = {
    "hostfile-line": "DeepSpeed reads slots=4x as 4, and ignores words behind the number",
    "hostfile-slots": "DeepSpeed lets slots=0 pass: the world is smaller than the file says",
    "hostfile-address": "names with colons or @ cannot be filtered, nor reached through pdsh",
    "hostfile-duplicate": "DeepSpeed takes two names of one machine for two machines",
    "hostfile-loopback": "every host would call itself",
    "host-filter-syntax": "int() takes signs, spaces and underscores",
    "host-filter-host": "a host that is named twice is a mistake, of which DeepSpeed makes the union",
    "host-filter-empty": "DeepSpeed goes on with no resources and fails on the first of none",
}
"""Rules by which we refuse what DeepSpeed accepts, and why."""
NAMES = ["a", "A", "node-b", "node-b.", "localhost", "127.0.0.1", "10.0.0.7", "::2", "user@c", "d_1", "slots"]
SLOTS = ["=4", "=8", "=1", "=2", "=2", "=3", "=0", "=4x", " = 4", "=", "=-1", "=4 # old", "=2 gpus", "=016"]
FILTERS = ["", ":0", ":1", ":0,1", ":1,0", ":0,0", ":9", ":0-1", ":0,", ":x", ":", ": 1", ":1_0"]
ORACLE = """
import json, logging, sys
from deepspeed.launcher.runner import _parse_hostfile, parse_inclusion_exclusion
logging.disable(logging.CRITICAL)
answers = []
for text, include, exclude in json.load(open(sys.argv[1])):
    try:
        pool = _parse_hostfile(text.splitlines(keepends=True))
        answers.append(list(parse_inclusion_exclusion(pool, include, exclude).items()))
    except ValueError as problem:
        answers.append(str(problem))
json.dump(answers, open(sys.argv[2], "w"))
"""


def generated() -> list[tuple[str, str, str]]:
    """Hostfile, include and exclude; each line and each part of a filter is most probably right."""
    chance = random.Random(20261130)

    def line(name: str) -> str:
        kind = chance.random()
        if kind < 0.05:
            return chance.choice(["", "# a slots=4", "   ", "a", "a:4", "b max_slots=8 slots=4", "c SLOTS=4"])
        indent, space = chance.choice(["", " "]), chance.choice([" ", "  ", "\t"])
        host = name if kind < 0.95 else chance.choice(NAMES)
        slots = chance.choice(SLOTS[: 5 if kind < 0.85 else None])
        return f"{indent}{host}{space}slots{slots}"

    def filter_of(names: list[str]) -> str:
        parts = []
        for name in chance.sample(names, chance.randint(1, min(2, len(names)))):
            slots = chance.choice(FILTERS[:4] if chance.random() < 0.8 else FILTERS)
            parts.append((name if chance.random() < 0.9 else chance.choice([*names, "unknown"])) + slots)
        return chance.choice(["@", "@", "@", "@", ","]).join(parts)

    cases = []
    for _ in range(NUM_CASES):
        names = chance.sample(["a", "node-b", "10.0.0.7", "d_1"] if chance.random() < 0.85 else NAMES, chance.randint(1, 4))
        text = "".join(f"{line(name)}\n" for name in names)
        include, exclude = chance.choices([(True, False), (False, True), (True, True), (False, False)], [35, 35, 3, 27])[0]
        cases.append((text, filter_of(names) if include else "", filter_of(names) if exclude else ""))
    return cases


def ours(text: str, include: str, exclude: str) -> tuple[list[list[object]] | None, set[str]]:
    """The resources as DeepSpeed writes them, ``None`` when refused, and the rules that refused."""
    nothing_known = LocalNames(own=frozenset(), addresses={})
    hosts, findings = parse_hostfile(text, source="hostfile", identify=nothing_known.identify)
    if not has_error(findings):
        hosts, more = filtered_hosts(hosts, include=include or None, exclude=exclude or None)
        findings += more
    if has_error(findings):
        return None, {finding.rule for finding in findings if finding.severity.value == "error"}
    return [[host.name, list(host.device_numbers)] for host in hosts], set()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[tuple[str, str, str], object]]:
    folder = tmp_path_factory.mktemp("hostfiles")
    cases = generated()
    (folder / "cases.json").write_text(json.dumps(cases))
    words = [sys.executable, "-c", ORACLE, str(folder / "cases.json"), str(folder / "answers.json")]
    subprocess.run(words, check=True, capture_output=True, timeout=240)
    return list(zip(cases, json.loads((folder / "answers.json").read_text()), strict=True))


def test_what_we_accept_is_what_deepspeed_reads(compared) -> None:
    accepted = 0
    for case, deepspeed in compared:
        resources, _ = ours(*case)
        if resources is not None:
            accepted += 1
            assert resources == deepspeed, case
    assert accepted > NUM_CASES / 3


def test_what_we_refuse_and_deepspeed_accepts_is_listed_with_its_reason(compared) -> None:
    met: set[str] = set()
    refused_by_both = 0
    for case, deepspeed in compared:
        resources, rules = ours(*case)
        refused_by_both += resources is None and isinstance(deepspeed, str)
        if resources is None and not isinstance(deepspeed, str):
            assert rules <= STRICTER.keys(), (case, rules)
            met |= rules
    assert met == STRICTER.keys()
    assert refused_by_both > NUM_CASES / 10


def test_the_example_is_what_deepspeed_reads_from_it() -> None:
    from deepspeed.launcher.runner import fetch_hostfile

    example = Path(__file__).parents[3] / "hostfile.example"
    hosts, findings = read_hostfile(example)
    assert not findings
    assert {host.name: host.slots for host in hosts} == dict(fetch_hostfile(str(example)))
