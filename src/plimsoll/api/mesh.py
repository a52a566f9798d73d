"""Mesh of a run, like `--mesh data=4,fsdp=2`: over how many devices it is split, and whether this machine has them.

JAX is not needed for that: the name of a chip says its devices, and the environment says how many a CPU is treated as.
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
    """Mesh of devices: each has its own rows of a batch, and `fsdp` neighbours share one copy of the state."""

    data: int
    fsdp: int

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"data={self.data},fsdp={self.fsdp}" if self.fsdp > 1 else f"data={self.data}"


def parse_mesh(text: str) -> Mesh:
    """Parses `data=8`, `data=4,fsdp=2` or `fsdp=8`; an axis that is not named is 1. Raises RecipeError otherwise."""
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


def with_mesh(pins: Mapping[str, Any], mesh: Mesh | None) -> dict[str, Any]:
    """Returns the pinned levers with `fsdp` pinned as the mesh says. Raises RecipeError if they contradict it."""
    if mesh is None:
        return dict(pins)
    pinned = pins.get("fsdp")
    if pinned is not None and pinned != mesh.fsdp:
        raise RecipeError(
            f"--mesh {mesh} and --fsdp {pinned} contradict each other: a mesh says fsdp itself. Give one of them"
        )
    return {**pins, "fsdp": mesh.fsdp}


def cpu_devices(environment: Mapping[str, str] = os.environ) -> int:
    """Returns the number of devices that JAX treats the CPU as in one process; 1 by default."""
    count = whole_number(environment.get(CPU_DEVICES, ""))
    if count is not None:
        return max(1, count)
    forced = re.findall(rf"{FORCED_DEVICES}=(\d+)", environment.get("XLA_FLAGS", ""))
    return max(1, int(forced[-1])) if forced else 1


def over_devices(
    target: Chip, mesh: Mesh | None, *, examples: int, micro_batch: int | None = None, processes: int = 1
) -> Chip:
    """Returns `target` with the devices and hosts that a run uses.

    The devices of an accelerator are part of its name. Of a CPU the run uses those of `mesh`; without one, as many as
    get equal parts of a micro-batch.

    Args:
        target: Chip to train on.
        mesh: Mesh that was requested.
        examples: Examples of an effective batch.
        micro_batch: Examples of a micro-batch, if that is pinned.
        processes: Number of processes that train together.

    Raises:
        RecipeError: The devices are not here, or cannot get equal parts.
    """
    if target.platform != "cpu":
        if mesh is not None and mesh.devices != target.devices:
            raise RecipeError(
                f"--mesh {mesh} is {mesh.devices} devices, and {target.name} has {target.devices}: name a mesh of as"
                " many, or a chip of as many (`plimsoll chips`; h100x8 is eight of them in one machine)"
            )
        _require_equal_parts(mesh, examples, micro_batch)
        several = target.platform == "cuda" and target.devices % processes == 0  # a TPU's hosts are in its name
        return replace(target, hosts=processes) if several else target
    each, batch = cpu_devices(), examples if micro_batch is None else micro_batch
    here = each * processes
    if mesh is None:
        devices = max((n for n in range(processes, here + 1, processes) if batch % n == 0), default=processes)
        return replace(target, devices=devices, hosts=processes)
    if mesh.devices > here:
        local = -(-mesh.devices // processes)
        where = f"{here} here" if processes == 1 else f"{here} in {processes} processes, {each} in each"
        raise RecipeError(
            f"--mesh {mesh} needs {mesh.devices} devices, and there {'is' if here == 1 else 'are'} {where}. Take a"
            f" smaller mesh, a --chip with as many, or let JAX take this CPU for {local}: set {CPU_DEVICES}={local}"
        )
    if mesh.devices % processes:
        raise RecipeError(
            f"--mesh {mesh} is {mesh.devices} devices, which {processes} processes cannot have in equal parts: take a"
            f" multiple of {processes}"
        )
    _require_equal_parts(mesh, examples, micro_batch)
    return replace(target, devices=mesh.devices, hosts=processes)


def _require_equal_parts(mesh: Mesh | None, examples: int, micro_batch: int | None) -> None:
    """Raises RecipeError if the examples of a micro-batch are no multiple of the mesh's devices."""
    batch = examples if micro_batch is None else micro_batch
    if mesh is None or batch % mesh.devices == 0:
        return
    what = "--batch-size x --gradient-accumulation-steps" if micro_batch is None else "--micro-batch"
    raise RecipeError(
        f"--mesh {mesh} gives each of {mesh.devices} devices as many examples of a micro-batch, and {batch}"
        f" examples ({what}) are no multiple of {mesh.devices}: take a multiple of it, or another mesh"
    )


def elsewhere(planned: Mapping[str, Any], mesh: Mesh | None, target: Chip, *, processes: int = 1) -> str | None:
    """Returns why a run's plan cannot be kept on the devices that are here now, in words; None if it can.

    Args:
        planned: The run's plan.json.
        mesh: Mesh that is requested now.
        target: Chip to train on.
        processes: Number of processes that train together now.
    """
    if target.platform != "cpu":
        return None
    plan = planned["plan"]
    devices, fsdp, hosts = plan.get("devices", 1), plan["fsdp"], planned.get("hosts", 1)
    before = Mesh(devices // fsdp, fsdp)
    if mesh is not None and mesh != before:
        return f"was planned for a mesh of {before}, and --mesh says {mesh}"
    here = cpu_devices() * processes
    if devices <= here and hosts == processes:
        return None
    of_hosts, of_processes = ("" if count == 1 else f" of {count} processes" for count in (hosts, processes))
    planned_for = f"{devices} device{'' if devices == 1 else 's'}{of_hosts}"
    return f"was planned for {planned_for}, and there are {here}{of_processes} now"
