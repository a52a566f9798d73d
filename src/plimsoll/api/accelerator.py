"""Accelerator of this machine: what is trained on by default, who holds its memory, its processes' environment.

Only JAX knows which devices it can use. A process of its own imports it and lists them, and only where files of a
driver are here: a machine without an accelerator pays nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from plimsoll.api.mesh import parse_mesh
from plimsoll.errors import BudgetError, PlimsollError, RecipeError
from plimsoll.planner import chips, host
from plimsoll.planner.chips import BACKEND, GPUS_IN_A_MACHINE, Chip
from plimsoll.processes import environment, nvidia
from plimsoll.processes.request import ask
from plimsoll.processes.toolchains import KITS
from plimsoll.units import GIB, MIB, format_bytes

Say = Callable[[str], None]

TPU_FAMILIES = {
    "TPU v3": "tpu-v3",
    "TPU v4": "tpu-v4",
    "TPU v5": "tpu-v5p",
    "TPU v5p": "tpu-v5p",
    "TPU v5 lite": "tpu-v5e",
    "TPU v5e": "tpu-v5e",
    "TPU v6 lite": "tpu-v6e",
    "TPU v6e": "tpu-v6e",
    "TPU7x": "tpu-v7x",
}
"""JAX's names of TPUs (jax/_src/pallas/mosaic/tpu_info.py, jax 0.10.2) to the families of the catalogue."""
GOOGLE, TPUS = "0x1ae0", {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
"""PCI vendor, and the device ids of its TPUs: jax/_src/hardware_utils.py, jax 0.10.2."""
BESIDE_BYTES = GIB
"""Bytes of a GPU that lie beside XLA's pool: the CUDA context and loaded kernels, as in `planner/chips.toml`."""
LOOK_SECONDS = 180
"""Time after which JAX's look at its devices counts as failed: on one host of several TPUs it waits for the others."""
HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES by which a user hides every GPU."""
JAX_VISIBLE = "JAX_CUDA_VISIBLE_DEVICES"
"""Variable by which JAX takes only some of the GPUs that CUDA sees."""


@dataclass(frozen=True)
class Card:
    """A GPU of this machine, or its TPU chips, as JAX sees one of them."""

    kind: str
    memory_bytes: int
    """Bytes that its allocator can give one process."""
    devices: int = 1
    """Devices of this kind that JAX sees."""
    driver: str = ""
    """Version of NVIDIA's driver; empty where nobody says."""


def chip_here(say: Say, *, batch: int, mesh: str | None = None, root: Path = Path("/")) -> Chip:
    """Returns what is trained on where no chip is named: the accelerator that JAX sees here, else the CPU.

    Of several equal GPUs it takes as many as share a batch equally, all of them if they do.

    Args:
        say: Called with the choice and its reason.
        batch: Examples that several devices share: the pinned micro-batch, else the effective batch.
        mesh: Mesh that was requested, as text. It says how many devices are used.
        root: Root of the file system in which drivers are looked for.

    Raises:
        RecipeError: A driver and JAX's plug-in are here, and JAX cannot use the accelerator.
    """
    platform, why_not = _platform_here(root)
    if platform is None:
        say(f"on the CPU: {why_not}")
        return chips.chip("cpu")
    try:
        card = _card(platform)
    except (PlimsollError, RuntimeError) as problem:
        words = str(problem).rstrip(".")
        raise RecipeError(
            f"{_WHAT[platform][0]} and JAX's plug-in for it are in this machine, and JAX cannot use it: {words}. Mend"
            " that (`plimsoll doctor` asks again), or train on the CPU with --chip cpu"
        ) from None
    target, why = _named_by(card, platform, batch, mesh)
    say(f"on {target.name}: JAX sees {f'{card.devices} x ' if card.devices > 1 else ''}{card.kind}{why}")
    return target


def _platform_here(root: Path) -> tuple[str | None, str]:
    """Returns the platform that JAX is to be asked for; None for the CPU alone, and why."""
    allowed = [name for name in os.environ.get("JAX_PLATFORMS", "").split(",") if name]
    if allowed and not {"cuda", "gpu", "tpu"} & {*allowed}:
        return None, f"JAX_PLATFORMS is {','.join(allowed)}"
    if nvidia.driver_is_here(root):
        if os.environ.get("CUDA_VISIBLE_DEVICES") in HIDDEN:
            return None, "CUDA_VISIBLE_DEVICES hides the GPU"
        if any(True for name in KITS["cuda"].plugins for _ in metadata.distributions(name=name)):
            return "cuda", ""
        extra = KITS["cuda"].extra
        return None, f"an NVIDIA driver is here, but JAX has no plug-in: install the extra `{extra}` to use the GPU"
    if util.find_spec("libtpu") is not None and _tpu_is_here(root):
        return "tpu", ""
    return None, "no NVIDIA driver and no TPU is here"


def _tpu_is_here(root: Path) -> bool:
    """Returns whether a TPU is among the PCI devices, as JAX itself looks for them."""
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == GOOGLE and (vendor.parent / "device").read_text().strip() in TPUS:
                return True
        except OSError:
            continue
    return False


def _named_by(card: Card, platform: str, batch: int, mesh: str | None) -> tuple[Chip, str]:
    """Returns the chip of a card that is here, with as many devices as are used; and words for what is left out."""
    requested = parse_mesh(mesh)
    if platform == "tpu":
        family = TPU_FAMILIES.get(card.kind)
        for each in chips.chips():
            if family and each.name.rpartition("-")[0] == family and (each.devices, each.hosts) == (card.devices, 1):
                return each, ""
        raise RecipeError(
            f"JAX sees {card.devices} x {card.kind}, and no slice of one host that `plimsoll chips` lists is that: name"
            " the slice with --chip, or train on the CPU with --chip cpu"
        )
    alone = _gpu(card)
    counts = [count for count in GPUS_IN_A_MACHINE if count <= card.devices and batch % count == 0]
    listed = chips.chip_called(card.kind)
    if listed is None or not listed.link_bandwidth:
        unlinked = ", one of them is used: how fast they reach one another is not known" if card.devices > 1 else ""
        return alone, unlinked + _source(alone)
    devices = requested.devices if requested else max(counts, default=1)
    target = chips.chip(alone.name if devices == 1 else f"{alone.name}x{devices}")
    if devices == card.devices:
        return target, ""
    if devices == 1 and requested is None:
        return target, f", one of them is used: a batch of {batch} is not shared equally"
    return target, f", {devices} of them {'is' if devices == 1 else 'are'} used"


def _source(chip: Chip) -> str:
    return "" if chip.flops else ", which no list of chips has: its memory is the driver's, its rates are measured"


def _gpu(card: Card) -> Chip:
    """Returns the catalogue's chip of this card; else one with the driver's memory, whose rates are to be measured."""
    if (listed := chips.chip_called(card.kind)) is not None:
        return chips.chip(listed.name)
    return Chip(
        name=re.sub(r"[^a-z0-9]+", "-", card.kind.lower()).strip("-"),
        platform="cuda",
        devices=1,
        hosts=1,
        memory_bytes=card.memory_bytes - BESIDE_BYTES,
        flops={},
        memory_bandwidth=0.0,
        link_bandwidth=0.0,
        host_link_bandwidth=0.0,
        host_memory_bytes=None,
        compiler={"description": card.kind},
        sources={"memory_bytes": "the driver's total, less 1 GiB for what lies beside XLA's pool"},
    )


def chip_named(name: str) -> Chip:
    """Returns a chip by its name: one of `plimsoll chips`, or the card that is here and in no list."""
    try:
        return chips.chip(name)
    except RecipeError as refusal:
        here, why_none = _platform_here(Path("/"))
        card = _gpu(_card("cuda")) if here == "cuda" else None
        if card is not None and card.name == name:
            return card
        if str(name).lower() not in chips.KINDS:
            raise
        default = f"the CPU ({why_none})" if here is None else "its TPU" if card is None else card.name
        raise RecipeError(f"{refusal}. Without --chip it is this machine's: {default}") from None


def card_here(target: Chip) -> Card | None:
    """Returns the GPU of this machine if it is of the kind that `target` is, and as many as it has; else None."""
    if target.platform != "cuda" or _platform_here(Path("/"))[0] != "cuda":
        return None
    try:
        card = _card("cuda")
    except (PlimsollError, RuntimeError):  # a plan for it needs none: training will say what is wrong
        return None
    return card if card.kind == target.compiler.get("description") and card.devices >= target.devices else None


def card_for(target: Chip) -> Card | None:
    """Returns the accelerator that is to be trained on; None for the CPU. It is called before anything is planned.

    Raises:
        RecipeError: JAX finds no such accelerator here, or the chip has several hosts.
    """
    if target.platform == "cpu":
        return None
    if target.hosts > 1:
        raise RecipeError(
            f"--chip {target.name} is {target.devices} devices in {target.hosts} machines, and this command was started"
            " by itself: start it on each of them, by their cluster or with --coordinator, --processes and --process"
            " (docs/scale.md)"
        )
    try:
        card = _card(target.platform)
    except (PlimsollError, RuntimeError) as problem:
        raise RecipeError(_missing(target, str(problem))) from None
    if card.devices < target.devices:
        raise RecipeError(_missing(target, f"JAX finds {card.devices} of its {target.devices} devices"))
    return card


def _card(platform: str) -> Card:
    """Returns the accelerator that JAX sees first. Raises PlimsollError if it sees none."""
    listed = _listed(platform)
    first = listed["devices"][0]  # a plan for one device trains on one
    if listed["backend"] != BACKEND[platform] or not first["memory_bytes"]:
        raise PlimsollError(f"JAX finds a {first['kind']} alone")
    devices = sum(each["kind"] == first["kind"] for each in listed["devices"])
    drivers = [gpu.driver for gpu in nvidia.gpus()] if platform == "cuda" else []
    return Card(first["kind"], first["memory_bytes"], devices, driver=next(iter(drivers), ""))


@cache
def _listed(platform: str) -> dict[str, Any]:
    """Returns what JAX lists, in a process that holds no memory of the accelerator. Its own messages are not shown."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return ask("accelerators", {}, under=environment.for_several(platform) | quiet, seconds=LOOK_SECONDS)


_WHAT = {"cuda": ("an NVIDIA GPU", "cuda13"), "tpu": ("a TPU", "tpu")}
"""Platform to its words, and to JAX's extra for it."""


def _missing(target: Chip, why: str) -> str:
    what, extra = _WHAT[target.platform]
    what = what if target.devices == 1 else f"{target.devices} devices"
    return (
        f"--chip {target.name} needs {what} in this machine that JAX can use, and there is none: {why}."
        " `plimsoll plan` plans for it all the same; to train on it, install JAX with its plug-in there"
        f" (`pip install 'jax[{extra}]'`), or train on the CPU with --chip cpu"
    )


def free_bytes(card: Card, target: Chip) -> int:
    """Returns what a run may have of each device now: what is free, less what lies beside XLA's pool."""
    free = [gpu.free_bytes - BESIDE_BYTES for gpu in _gpus_of(card, target)]
    return max(0, min(free, default=card.memory_bytes - BESIDE_BYTES))


def _gpus_of(card: Card, target: Chip) -> list[nvidia.Gpu]:
    """Returns the driver's view of the devices that are used; none where it does not answer."""
    return [gpu for gpu in nvidia.gpus() if gpu.kind == card.kind][: target.devices]


def held(card: Card, target: Chip) -> str:
    """Returns who holds memory of the devices that are used, in words; empty where nobody is known."""
    return ", ".join(str(holder) for gpu in _gpus_of(card, target) for holder in gpu.holders)


def require_free(card: Card | None, target: Chip, budget_bytes: int) -> None:
    """Raises BudgetError if a GPU has less free memory than the budget, with who holds it and what budget would do."""
    if card is None or target.platform != "cuda":
        return
    free = free_bytes(card, target)
    if budget_bytes <= free:
        return
    who = held(card, target) or "the driver names none: they may be in another container"
    raise BudgetError(
        f"the budget is {format_bytes(budget_bytes)} per device, and the {card.kind} of this machine has"
        f" {format_bytes(free)} that a run can use now, of {format_bytes(card.memory_bytes)}. Processes that hold"
        f" memory of it: {who}. End them, or ask for at most --memory {free // MIB}MiB, and --replan where the run has"
        " a plan",
        budget_bytes=budget_bytes,
        floor_bytes=None,
    )


def compile_environment(target: Chip, card: Card, budget_bytes: int, *, measure: bool) -> dict[str, str]:
    """Returns the environment of the process that compiles plans on the card, and holds the budget at most.

    To time plans it takes the budget at once, as training does: an allocator that grows has less room for the large
    buffers of a step, and would refuse plans that fit. To compile it takes nothing.
    """
    share = min(1.0, budget_bytes / card.memory_bytes)
    environ = environment.on_card(share, pinned_bytes=pinned_at_most()) | _visible(target, card)
    return environ if measure else environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def pinned_at_most(planned_host: Mapping[str, Any] | None = None) -> int:
    """Returns the bytes of the host's memory that XLA may pin for a card, which it does not give back.

    It pins more than a step asks for, in powers of two. So it may have what the host's budget, or this machine, leaves
    beside the rest of the process, and no less than the plan needs.

    Args:
        planned_host: The host's ledger in plan.json; None where nothing is planned yet.
    """
    available = host.available_bytes()
    of_machine = available - host.margin_bytes(available)
    if planned_host is None:
        return of_machine

    # Beside the rest of the process, as it was planned.
    budget = planned_host["budget_bytes"]
    room = of_machine if budget is None else budget
    pinned = planned_host["pinned_bytes"]
    rest = planned_host["predicted_peak_bytes"] - pinned
    return max(pinned, room - rest)


def _visible(target: Chip, card: Card) -> dict[str, str]:
    """Returns the variable by which JAX leaves alone the GPUs that a plan does not use; none if it uses all."""
    if card.devices <= target.devices:
        return {}
    theirs = [name for name in os.environ.get(JAX_VISIBLE, "all").split(",") if name != "all"]
    seen = theirs or [str(number) for number in range(card.devices)]
    return {JAX_VISIBLE: ",".join(seen[: target.devices])}


def training_environment(
    target: Chip,
    card: Card | None,
    budget_bytes: int,
    say: Say,
    *,
    devices: int = 1,
    one_heap: bool = True,
    planned_host: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Returns the environment of the training process.

    On a GPU it limits JAX's allocator to the budget. A TPU's allocator has no limit.

    Args:
        target: Chip that the run is planned for.
        card: Accelerator to train on; None for the CPU, and for one of several processes.
        budget_bytes: Budget of the plan.
        say: Called with a warning if the accelerator is not the one that was planned for.
        devices: Number of devices that the CPU is treated as.
        one_heap: Whether the threads of a process that trains on the CPU share one heap.
        planned_host: The host's ledger in plan.json.

    Raises:
        RecipeError: The accelerator has less memory than the budget.
    """
    if card is None:  # the CPU, or processes that have their environment already
        return environment.for_processes("cpu", devices=devices, one_heap=one_heap)
    if card.memory_bytes < budget_bytes:
        raise RecipeError(
            f"the {card.kind} of this machine gives a process {format_bytes(card.memory_bytes)}, and the budget for"
            f" {target.name} is {format_bytes(budget_bytes)}: ask for at most that with --memory, and --replan where"
            " the run has a plan"
        )
    if target.platform == "tpu":  # nothing notices if it goes over the budget
        return environment.for_several("tpu")
    planned_for = str(target.compiler.get("description", ""))
    if planned_for and card.kind != planned_for:
        say(f"this machine has a {card.kind}, and the plan was made with the figures of {target.name} ({planned_for})")
    pinned = pinned_at_most(planned_host)
    return environment.on_card(budget_bytes / card.memory_bytes, pinned_bytes=pinned) | _visible(target, card)
