"""What must be alike on all hosts and is not. The majority is right, in a tie the first host: its odd ones get the finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.findings import Finding, Severity, error, warning
from orchestrator.launch.preflight.facts import PACKAGES, HostFacts
from orchestrator.launch.preflight.judgement import NVME_PATH, missing_swap_folder
from orchestrator.units import GIB

Value = Callable[[HostFacts], Hashable | None]
_RULE = "hosts-differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """Something in which hosts are compared. ``severity`` of a difference; ``None``: it is shown, and no finding."""

    name: str
    value: Value
    severity: Severity | None
    fix: str = ""


def traits(facts: Mapping[str, HostFacts]) -> list[Trait]:
    """In what the hosts are compared, as far as they were asked for it."""
    environment = "install the same versions in the environment of every host"
    files = sorted({option for entry in facts.values() for option in entry.files})
    return [
        Trait(name="Python", value=lambda entry: entry.python, severity=Severity.error, fix=environment),
        *(_package(name, environment) for name in PACKAGES),
        Trait(
            name="orchestrator",
            value=lambda entry: entry.project and f"{entry.project.version} (sources {entry.project.digest[:8]})",
            severity=Severity.error,
            fix="update the checkout on that host, or share one over the network",
        ),
        Trait(name="CUDA of torch", value=lambda entry: entry.torch_cuda, severity=Severity.error, fix=environment),
        Trait(
            name="driver",
            value=lambda entry: entry.accelerators and entry.accelerators.driver,
            severity=Severity.warning,
            fix="nothing, if the driver is new enough for torch's CUDA; else install the same",
        ),
        Trait(
            name="devices",
            value=_devices,
            severity=Severity.warning,
            fix="leave the odd host out (cluster.exclude): all wait for the slowest",
        ),
        *(_content(option) for option in files),
        Trait(name="cores", value=lambda entry: entry.num_cores, severity=None),
        Trait(name="RAM", value=lambda entry: entry.memory and f"{entry.memory.limit_bytes / GIB:.0f} GiB", severity=None),
        Trait(name="open files", value=lambda entry: entry.open_files, severity=None),
    ]


def odd_ones(facts: Mapping[str, HostFacts]) -> Iterator[tuple[str, Finding]]:
    """Each host that differs from the others, with a finding for everything in which it does."""
    for trait in traits(facts):
        if trait.severity is None:
            continue
        values = {host: value for host, entry in facts.items() if (value := trait.value(entry)) is not None}
        if len(set(values.values())) < 2:
            continue
        common = usual(values)
        for host, value in values.items():
            if value == common:
                continue
            message = f"{_said(trait, value)}, where the others have {_said(trait, common)}"
            if trait.severity is Severity.error:
                yield host, error(_RULE, trait.name, message, trait.fix)
            else:
                yield host, warning(_RULE, trait.name, message, trait.fix)
    yield from _missing_swap_folders(facts)


def usual(values: Mapping[str, Hashable]) -> Hashable:
    """The value most hosts have; of several the one that comes first."""
    return Counter(values.values()).most_common(1)[0][0]


def _missing_swap_folders(facts: Mapping[str, HostFacts]) -> Iterator[tuple[str, Finding]]:
    folders = {host: entry.folders[NVME_PATH] for host, entry in facts.items() if NVME_PATH in entry.folders}
    if any(folder.exists for folder in folders.values()):
        yield from ((host, missing_swap_folder(folder)) for host, folder in folders.items() if not folder.exists)


def _package(name: str, fix: str) -> Trait:
    matters = name in ("torch", "deepspeed", "transformers")
    severity = Severity.error if matters else Severity.warning
    return Trait(name=name, value=lambda entry: (entry.packages or {}).get(name), severity=severity, fix=fix)


def _content(option: str) -> Trait:
    return Trait(
        name=option,
        value=lambda entry: entry.files[option].digest if option in entry.files else None,
        severity=Severity.error,
        fix="copy the same files to every host, or name a folder that all share",
    )


def _devices(facts: HostFacts) -> str | None:
    kinds = Counter(device.name for device in facts.devices)
    return ", ".join(f"{count} x {name}" for name, count in kinds.items()) or None


def _said(trait: Trait, value: Hashable) -> str:
    return f"content {value}" if trait.name.startswith(("data.", "model.", "training.")) else f"{trait.name} {value}"
