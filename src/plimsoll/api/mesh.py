"""`--mesh data=4,fsdp=2`: over how many devices a run is split, and whether they are here.

Part of the joint, without JAX: an accelerator's devices are counted by the name of its chip, those that a CPU is taken
for by the environment that JAX reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.planner.chips import Chip
from plimsoll.processes.environment import CPU_DEVICES, FORCED_DEVICES
from plimsoll.units import whole_number

AXES = ("data", "fsdp")


@dataclass(frozen=True)
class Mesh:
    """What `--mesh` asks for: every device has its rows of a batch, `fsdp` neighbours share one copy of the state."""

    data: int
    fsdp: int

    @property
    def devices(self) -> int:
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"data={self.data},fsdp={self.fsdp}" if self.fsdp > 1 else f"data={self.data}"


def parse_mesh(text: str) -> Mesh:
    """`data=8`, `data=4,fsdp=2` or `fsdp=8`; an axis that is not named is 1."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        devices = whole_number(size)
        if name not in AXES or name in sizes or not devices:
            raise RecipeError(
                f"--mesh {text[:80]} is no mesh: give the number of devices along {' and '.join(AXES)}, each at most"
                " once, like --mesh data=8 or --mesh data=4,fsdp=2"
            )
        sizes[name] = devices
    return Mesh(sizes.get("data", 1), sizes.get("fsdp", 1))


def with_mesh(pins: Mapping[str, Any], asked: Mesh | None) -> dict[str, Any]:
    """The levers that are pinned, with the one that a mesh pins."""
    if asked is None:
        return dict(pins)
    theirs = pins.get("fsdp")
    if theirs is not None and theirs != asked.fsdp:
        raise RecipeError(
            f"--mesh {asked} and --fsdp {theirs} contradict each other: a mesh says fsdp itself. Give one of them"
        )
    return {**pins, "fsdp": asked.fsdp}


def cpu_devices(environment: Mapping[str, str] = os.environ) -> int:
    """As many as JAX takes one CPU for in a process: 1 where nobody says."""
    named = whole_number(environment.get(CPU_DEVICES, ""))
    if named is not None:
        return max(1, named)
    forced = re.findall(rf"{FORCED_DEVICES}=(\d+)", environment.get("XLA_FLAGS", ""))
    return max(1, int(forced[-1])) if forced else 1


def over_devices(
    target: Chip, asked: Mesh | None, *, examples: int, micro_batch: int | None = None, processes: int = 1
) -> Chip:
    """`target` with the devices that are used of it: as asked, else as many as get equal parts of a micro-batch.

    `examples` are those of an effective batch; `micro_batch` is the one that is pinned. Only a CPU's number is open: a
    chip's is in its name. Raises RecipeError where the devices are not here.
    """
    if target.platform != "cpu":
        if asked is not None and asked.devices != target.devices:
            raise RecipeError(
                f"--mesh {asked} is {asked.devices} devices, and {target.name} has {target.devices}: name a mesh of as"
                " many, or a chip of as many (`plimsoll chips`; h100x8 is eight of them in one machine)"
            )
        _require_equal_parts(asked, examples, micro_batch)
        several = target.platform == "cuda" and target.devices % processes == 0  # a TPU's hosts are in its name
        return replace(target, hosts=processes) if several else target
    each, batch = cpu_devices(), examples if micro_batch is None else micro_batch
    here = each * processes
    if asked is None:
        found = max((n for n in range(processes, here + 1, processes) if batch % n == 0), default=processes)
        return replace(target, devices=found, hosts=processes)
    if asked.devices > here:
        local = -(-asked.devices // processes)
        where = f"{here} here" if processes == 1 else f"{here} in {processes} processes, {each} in each"
        raise RecipeError(
            f"--mesh {asked} needs {asked.devices} devices, and there {'is' if here == 1 else 'are'} {where}. Take a"
            f" smaller mesh, a --chip with as many, or let JAX take this CPU for {local}: set {CPU_DEVICES}={local}"
        )
    if asked.devices % processes:
        raise RecipeError(
            f"--mesh {asked} is {asked.devices} devices, which {processes} processes cannot have in equal parts: take a"
            f" multiple of {processes}"
        )
    _require_equal_parts(asked, examples, micro_batch)
    return replace(target, devices=asked.devices, hosts=processes)


def _require_equal_parts(asked: Mesh | None, examples: int, micro_batch: int | None) -> None:
    batch = examples if micro_batch is None else micro_batch
    if asked is None or batch % asked.devices == 0:
        return
    what = "--batch-size x --gradient-accumulation-steps" if micro_batch is None else "--micro-batch"
    raise RecipeError(
        f"--mesh {asked} gives each of {asked.devices} devices as many examples of a micro-batch, and {batch}"
        f" examples ({what}) are no multiple of {asked.devices}: take a multiple of it, or another mesh"
    )


def elsewhere(planned: Mapping[str, Any], asked: Mesh | None, target: Chip, *, processes: int = 1) -> str | None:
    """Why the plan of a run cannot be kept on the devices that are here now, in words; None where it can."""
    if target.platform != "cpu":
        return None
    plan = planned["plan"]
    devices, fsdp, hosts = plan.get("devices", 1), plan["fsdp"], planned.get("hosts", 1)
    theirs = Mesh(devices // fsdp, fsdp)
    if asked is not None and asked != theirs:
        return f"was planned for a mesh of {theirs}, and --mesh says {asked}"
    here = cpu_devices() * processes
    if devices > here or hosts != processes:
        return f"was planned for {_devices(devices, hosts)}, and there are {_count(here, processes)} now"
    return None


def _devices(count: int, processes: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}" + ("" if processes == 1 else f" of {processes} processes")


def _count(count: int, processes: int) -> str:
    return f"{count}" + ("" if processes == 1 else f" of {processes} processes")
