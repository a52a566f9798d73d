from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planner.types import Rates


@dataclass(frozen=True, kw_only=True)
class Chip:
    name: str
    platform: str
    devices: int = 1
    hosts: int = 1
    memory_bytes: int = 0
    flops: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth: float = 0
    link_bandwidth: float = 0
    host_memory_bytes: int | None = None
    compiler: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


def chip(name, file=None):
    if name == "cpu":
        return Chip(name="cpu", platform="cpu")
    if name == "h200":
        return Chip(
            name="h200",
            platform="cuda",
            memory_bytes=139 << 30,
            flops={"float32": 67e12, "bfloat16": 989e12},
            memory_bandwidth=4.8e12,
        )
    if name == "tpu-v4-64":
        return Chip(
            name=name,
            platform="tpu",
            devices=32,
            hosts=8,
            memory_bytes=int(30.75 * 2**30),
            flops={"float32": 275e12 / 6, "bfloat16": 275e12},
            memory_bandwidth=1.2e12,
            link_bandwidth=1e11,
            compiler={"topology_name": "v4:2x4x4", "chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)},
        )


def rates(c):
    return Rates(
        flops=c.flops,
        copy_bytes=c.memory_bandwidth,
        first_touch_bytes=1e15,
        loop_seconds=2e-5,
        source="data sheet",
        link_bytes=c.link_bandwidth,
    )
