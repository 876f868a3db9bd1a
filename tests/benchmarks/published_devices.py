"""The machines of published training speeds, as the planner's own clusters.

A device is found in ``tests/data/hardware.csv`` by its label. What a row or its source says of the hosts counts before the
typical host of that table; sites whose network is documented elsewhere are listed here.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.config.enums import Accelerator, Precision
from orchestrator.config.schema import ClusterConfig
from orchestrator.planning.cluster_spec import ClusterSpec, cluster_spec_from_config
from orchestrator.units import GIB
from tests.benchmarks.published_rows import Row, parse_number

HARDWARE = Path(__file__).parents[1] / "data" / "hardware.csv"
DEFAULT_DEVICES_PER_HOST = 8
NVLINK_DOMAIN = 72
"""Devices of a GB200 or GB300 rack that one NVLink switch connects; to the planner they are one host."""
USABLE_SHARE = 0.985
"""Of the label's memory, where torch's own total is not known."""
ULTRA_GB = 288.0
"""Memory of Blackwell Ultra, which the table has for B300 alone."""
DEFAULT_HOST_GIB = 1500.0
CONTEXT_GIB = 1.8
NUMBER = r"(\d+(?:\.\d+)?)"
SHORT_NAMES: Mapping[str, str] = {
    "mi300": "mi300x",
    "mi250": "mi250x",
    "a6000": "rtxa6000",
    "4090": "rtx4090",
    "3090": "rtx3090",
}
"""Labels that leave out a part of the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is documented of a site's hosts: devices, and the network of one host in GB/s, one direction."""

    devices_per_host: int
    network_gbps: float


SITES: Mapping[str, Site] = {
    "jean zay a100": Site(devices_per_host=8, network_gbps=50),
    "jean zay v100": Site(devices_per_host=4, network_gbps=50),
}
"""By words of the source. Both have four Omni-Path links of 100 Gbit/s a host (IDRIS, description of Jean Zay)."""
NIC_GBPS: Mapping[str, float] = {"volta": 6.25, "ampere": 25, "hopper": 50, "blackwell": 50, "blackwell ultra": 100}
"""Network for each device of a DGX of that generation, GB/s, where neither row nor table says more."""


def published_cluster(row: Row) -> ClusterSpec | None:
    """The cluster of a row; ``None`` for a device that is not in the table."""
    device = find_device(row.text("gpu"))
    if device is None:
        return None
    gpus = max(1, row.whole("gpus", 1))
    slots = min(gpus, _devices_per_host(row, device))
    config = ClusterConfig(
        name=row.text("gpu"),
        hosts=-(-gpus // slots),
        devices_per_host=slots,
        accelerator=Accelerator.cuda,
        device_name=_device_name(device),
        device_memory_gib=device_memory_gib(row, device),
        device_context_gib=CONTEXT_GIB,
        host_memory_gib=(parse_number(device["node_host_ram_gb"]) or DEFAULT_HOST_GIB) * 1e9 / GIB,
        precisions=[Precision.fp32, Precision.bf16, Precision.fp16],
        bf16_tflops=_rate(row, device),
        fp16_tflops=_rate(row, device),
        fp32_tflops=_fp32_rate(row, device),
        memory_bandwidth_gbps=parse_number(device["hbm_gbps"]),
        device_link_gbps=parse_number(device["gpu_link_gbps_per_dir_total"]) or parse_number(device["cpu_link_gbps_per_dir"]),
        host_link_gbps=parse_number(device["cpu_link_gbps_per_dir"]),
        network_gbps=_network_gbps(row, device),
    )
    spec, findings = cluster_spec_from_config(config, hosts=None, machine_memory_bytes=round(DEFAULT_HOST_GIB * GIB))
    return None if findings else spec


def find_device(label: str) -> Mapping[str, str] | None:
    """The entry of the hardware table that a label means: longest name, then form factor, then the nearest memory size."""
    plain = _plain(label)
    named = _named(plain) or [
        device for short, name in SHORT_NAMES.items() if short in plain for device in _named(plain.replace(short, name))
    ]
    if not named:
        return None
    longest = max(len(_plain(device["gpu"])) for device in named)
    size = _label_gb(label) or 80.0

    def distance(device: Mapping[str, str]) -> tuple[bool, float]:
        wrong_form = ("pcie" in device["form_factor"].lower()) != ("pcie" in plain)
        return wrong_form, abs((parse_number(device["mem_marketed_gb"]) or size) - size)

    return min((device for device in named if len(_plain(device["gpu"])) == longest), key=distance)


def _named(plain: str) -> list[Mapping[str, str]]:
    return [device for device in _table() if plain and _plain(device["gpu"]) in plain]


def device_memory_gib(row: Row, device: Mapping[str, str]) -> float:
    """What torch reports of the device, GiB; of a size that the table does not have, a share of the label's."""
    size, marketed = _label_gb(row.text("gpu")), parse_number(device["mem_marketed_gb"])
    if marketed is None and device["arch"] == "Blackwell Ultra":
        marketed = ULTRA_GB
    usable = parse_number(device["mem_torch_gib_min"])
    if usable is not None and (size is None or size == marketed):
        return usable
    return USABLE_SHARE * (size or marketed or 80.0)


@cache
def _table() -> tuple[Mapping[str, str], ...]:
    with HARDWARE.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def _plain(label: str) -> str:
    return re.sub(r"[^a-z0-9]", "", label.lower().split("(")[0])


def _device_name(device: Mapping[str, str]) -> str:
    return "-".join(part for part in (device["gpu"].split(" (")[0], device["form_factor"].split("/")[0]) if part)


def _label_gb(label: str) -> float | None:
    size = re.search(r"(\d+)\s*g", label.lower().removeprefix("gb"))
    return None if size is None else float(size.group(1))


def _rate(row: Row, device: Mapping[str, str]) -> float | None:
    """Dense peak of the format in which the row multiplies: 8 bits twice 16, 4 bits twice 8 where the hardware has them."""
    half = parse_number(device["bf16_dense_tflops"]) or parse_number(device["fp16_dense_tflops"])
    eight = parse_number(device["fp8_dense_tflops"])
    stated = row.text("precision")
    if "fp4" in stated:
        return 2 * eight if eight else half
    return eight or half if is_eight_bit(row) else half


def _fp32_rate(row: Row, device: Mapping[str, str]) -> float | None:
    """TF32 is half of 16 bits on every device that has it."""
    half = parse_number(device["bf16_dense_tflops"])
    return half / 2 if half and "tf32" in row.text("precision") else parse_number(device["fp32_tflops"])


def is_eight_bit(row: Row) -> bool:
    """Whether the matrix products of a row are in FP8."""
    return any(
        name in f"{row.text('precision')} {row.text('source')} {row.text('notes')}" for name in ("fp8", "float8", "mxfp8")
    )


def _site(row: Row) -> Site | None:
    told = row.text("source").replace("(", "").replace(")", "")
    return next((site for words, site in SITES.items() if words in told), None)


def _devices_per_host(row: Row, device: Mapping[str, str]) -> int:
    if _plain(device["gpu"]).startswith("gb"):
        return NVLINK_DOMAIN
    stated = re.search(r"(\d+)[ -]gpus?[ -](?:per[ -])?nodes?", _told(row))
    if stated and int(stated.group(1)):
        return int(stated.group(1))
    site = _site(row)
    return site.devices_per_host if site else int(parse_number(device["devices_per_node"]) or DEFAULT_DEVICES_PER_HOST)


def _network_gbps(row: Row, device: Mapping[str, str]) -> float | None:
    """Of one host, GB/s, one direction: as the row says, as the site has, or as the typical host of the device has."""
    told, devices = _told(row), _devices_per_host(row, device)
    patterns = ((rf"{NUMBER} ?gb/s per node", 1), (rf"{NUMBER} ?gbps node", 1), (rf"{NUMBER} ?gb/s per gpu", devices))
    for pattern, count in patterns:
        stated = re.search(pattern, told)
        if stated:
            return float(stated.group(1)) / 8 * count
    site = _site(row)
    if site is not None:
        return site.network_gbps
    nics, rate = parse_number(device["node_nics"]), parse_number(device["node_nic_gbit_each"])
    if nics and rate:
        return nics * rate / 8 * devices / (parse_number(device["devices_per_node"]) or devices)
    return NIC_GBPS.get(device["arch"].lower(), 12.5) * devices


def _told(row: Row) -> str:
    return f"{row.text('source')} {row.text('notes')}"
