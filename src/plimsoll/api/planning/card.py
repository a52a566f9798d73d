"""The accelerators of this machine: what JAX sees of them, who holds their memory, and the environment of processes.

Only JAX knows which devices it can use. A process of its own imports it and lists them, and only where files of a
driver are here: a machine without an accelerator pays nothing.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from plimsoll.api.messages import Say
from plimsoll.errors import PlimsollError
from plimsoll.planned import HostLedger
from plimsoll.planner import host
from plimsoll.planner.chips import BACKEND, Chip
from plimsoll.planner.types import Card
from plimsoll.processes import environment, nvidia
from plimsoll.processes.request import ask
from plimsoll.processes.toolchains import KITS
from plimsoll.units import GIB

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
WORDS = {"cuda": "an NVIDIA GPU", "tpu": "a TPU"}
EXTRAS = {"cuda": "cuda13", "tpu": "tpu"}
"""JAX's extra for a platform."""


def platform_here(root: Path = Path("/")) -> tuple[str | None, str]:
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


def seen(platform: str) -> Card:
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
    """Returns the devices that JAX lists, in a process that holds no memory of them and shows no messages of JAX."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return ask("accelerators", {}, under=environment.for_several(platform) | quiet, seconds=LOOK_SECONDS)


def free_bytes(card: Card, target: Chip) -> int:
    """Returns the bytes of each device that a run may have now: those that are free, less those beside XLA's pool."""
    free = [gpu.free_bytes - BESIDE_BYTES for gpu in _gpus_of(card, target)]
    return max(0, min(free, default=card.memory_bytes - BESIDE_BYTES))


def _gpus_of(card: Card, target: Chip) -> list[nvidia.Gpu]:
    """Returns the driver's view of the devices that are used; none where it does not answer."""
    return [gpu for gpu in nvidia.gpus() if gpu.kind == card.kind][: target.devices]


def held(card: Card, target: Chip) -> str:
    """Returns who holds memory of the devices that are used, in words; empty where nobody is known."""
    return ", ".join(holder for gpu in _gpus_of(card, target) for holder in gpu.holders)


def compile_environment(target: Chip, card: Card, budget_bytes: int, *, measure: bool) -> dict[str, str]:
    """Returns the environment of the process that compiles plans on the card, and holds the budget at most.

    To time plans it takes the budget at once, as training does: an allocator that grows has less room for the large
    buffers of a step, and would refuse plans that fit. To compile it takes nothing.
    """
    share = min(1.0, budget_bytes / card.memory_bytes)
    environ = environment.on_card(share, pinned_bytes=pinned_at_most()) | _visible(target, card)
    return environ if measure else environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def pinned_at_most(planned_host: HostLedger | None = None) -> int:
    """Returns the bytes of the host's memory that XLA may pin for a card, which it does not give back.

    It pins more than a step asks for, in powers of two. So it may have what the host's budget, or this machine, leaves
    beside the rest of the process, and no less than the plan needs.

    Args:
        planned_host: The host's ledger of the plan; None where nothing is planned yet.
    """
    available = host.available_bytes()
    of_machine = available - host.margin_bytes(available)
    if planned_host is None:
        return of_machine

    # Beside the rest of the process, as it was planned.
    budget = planned_host.budget_bytes
    room = of_machine if budget is None else budget
    pinned = planned_host.pinned_bytes
    rest = planned_host.predicted_peak_bytes - pinned
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
    planned_host: HostLedger | None = None,
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
        planned_host: The host's ledger of the plan.
    """
    if card is None:  # the CPU, or processes that have their environment already
        return environment.for_processes("cpu", devices=devices, one_heap=one_heap)
    if target.platform == "tpu":  # nothing notices if it goes over the budget
        return environment.for_several("tpu")
    planned_for = str(target.compiler.get("description", ""))
    if planned_for and card.kind != planned_for:
        say(f"this machine has a {card.kind}, and the plan was made with the figures of {target.name} ({planned_for})")
    pinned = pinned_at_most(planned_host)
    return environment.on_card(budget_bytes / card.memory_bytes, pinned_bytes=pinned) | _visible(target, card)
