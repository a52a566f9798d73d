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
from plimsoll.recipes.recipe import Recipe
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


def parse_mesh(text: str | None) -> Mesh | None:
    """Parses `data=8`, `data=4,fsdp=2` or `fsdp=8`; an axis that is not named is 1. Raises RecipeError otherwise."""
    if text is None:
        return None
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


def cpu_devices() -> int:
    """Returns how many devices JAX makes of the CPU in one process; 1 by default."""
    count = whole_number(os.environ.get(CPU_DEVICES, ""))
    if count is not None:
        return max(1, count)
    forced = re.findall(rf"{FORCED_DEVICES}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(1, int(forced[-1])) if forced else 1


def over_devices(
    target: Chip, recipe: Recipe, pins: Mapping[str, Any], mesh: str | None, *, processes: int = 1
) -> tuple[Chip, dict[str, Any]]:
    """Returns `target` with the devices and hosts that a run uses, and the pinned levers with `fsdp` as the mesh says.

    The devices of an accelerator are part of its name. Of a CPU the run uses those of `mesh`; without one, as many as
    get equal parts of a micro-batch.

    Args:
        target: Chip to train on.
        recipe: Recipe whose effective batch they share, unless a micro-batch is pinned.
        pins: Levers that are pinned, to None those that are not.
        mesh: Mesh that was requested, as text.
        processes: Number of processes that train together.

    Raises:
        RecipeError: The devices are not here, cannot get equal parts, or the mesh contradicts a lever.
    """
    requested, pins = parse_mesh(mesh), {name: value for name, value in pins.items() if value is not None}
    micro_batch = pins.get("micro_batch")
    batch = recipe.effective_batch if micro_batch is None else micro_batch
    if requested is not None and pins.setdefault("fsdp", requested.fsdp) != requested.fsdp:
        raise RecipeError(
            f"--mesh {requested} and --fsdp {pins['fsdp']} contradict each other: a mesh says fsdp itself. Give one of"
            " them"
        )
    if requested is not None and batch % requested.devices:
        what = "--batch-size x --gradient-accumulation-steps" if micro_batch is None else "--micro-batch"
        raise RecipeError(
            f"--mesh {requested} gives each of {requested.devices} devices as many examples of a micro-batch, and"
            f" {batch} examples ({what}) are no multiple of {requested.devices}: take a multiple of it, or another mesh"
        )
    if target.platform == "cpu":
        devices, hosts = _cpu_devices_of(requested, batch // recipe.hints.normalised_together, processes), processes
    else:
        devices = target.devices
        hosts = processes if target.platform == "cuda" and devices % processes == 0 else target.hosts  # a TPU's: named
        if requested is not None and requested.devices != devices:
            raise RecipeError(
                f"--mesh {requested} is {requested.devices} devices, and {target.name} has {devices}: name a mesh of as"
                " many, or a chip of as many (`plimsoll chips`; h100x8 is eight of them in one machine)"
            )
    return replace(target, devices=devices, hosts=hosts), pins


def _cpu_devices_of(mesh: Mesh | None, batch: int, processes: int) -> int:
    """Returns how many devices a run uses, of those that the CPUs of all processes are treated as.

    Raises RecipeError if they are fewer than the mesh has, or the processes cannot have equal parts of it.
    """
    each = cpu_devices()
    here = each * processes
    if mesh is None:
        return max((n for n in range(processes, here + 1, processes) if batch % n == 0), default=processes)
    if mesh.devices > here and mesh.devices % processes == 0:
        local = mesh.devices // processes
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
    return mesh.devices


def elsewhere(planned: Mapping[str, Any], mesh: str | None, target: Chip, *, processes: int = 1) -> str | None:
    """Returns why a run's plan cannot be kept on the devices that are here now, in words; None if it can.

    Args:
        planned: The run's plan.json.
        mesh: Mesh that is requested now, as text.
        target: Chip to train on.
        processes: Number of processes that train together now.
    """
    if target.platform != "cpu":
        return None
    plan = planned["plan"]
    devices, fsdp, hosts = plan.get("devices", 1), plan["fsdp"], planned.get("hosts", 1)
    before, requested = Mesh(devices // fsdp, fsdp), parse_mesh(mesh)
    if requested not in (None, before):
        return f"was planned for a mesh of {before}, and --mesh says {requested}"
    here = cpu_devices() * processes
    if devices <= here and hosts == processes:
        return None
    of_hosts, of_processes = ("" if count == 1 else f" of {count} processes" for count in (hosts, processes))
    planned_for = f"{devices} device{'' if devices == 1 else 's'}{of_hosts}"
    return f"was planned for {planned_for}, and there are {here}{of_processes} now"
