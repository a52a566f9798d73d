"""Accelerators of this machine: devices, processes that hold their memory, and environment variables to use them.

Only JAX knows the devices that it can use. So a separate process imports JAX and lists the devices, but only if the
files of a driver are on this machine. A machine without an accelerator starts no such process.
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
"""Map from JAX's names of TPUs (jax/_src/pallas/mosaic/tpu_info.py, jax 0.10.2) to our names of TPU families."""
GOOGLE, TPUS = "0x1ae0", {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
"""PCI id of Google, and the PCI device ids of its TPUs (jax/_src/hardware_utils.py, jax 0.10.2)."""
BESIDE_BYTES = GIB
"""Bytes of a GPU outside XLA's pool: the CUDA context and loaded kernels, as in `planner/chips.toml`."""
LOOK_SECONDS = 180
"""Time limit in seconds for listing JAX's devices. On one of several TPU hosts, JAX waits for the other hosts."""
HIDDEN = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide every GPU."""
JAX_VISIBLE = "JAX_CUDA_VISIBLE_DEVICES"
"""Environment variable that limits JAX to some of the GPUs that CUDA sees."""
WORDS = {"cuda": "an NVIDIA GPU", "tpu": "a TPU"}
EXTRAS = {"cuda": "cuda13", "tpu": "tpu"}
"""Map from platform to the extra of `pip install jax[EXTRA]` that supports it."""


def platform_here(root: Path = Path("/")) -> tuple[str | None, str]:
    """Returns the platform of this machine's accelerator and ""; or None and the reason why only the CPU is used."""
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
    """Returns True if a TPU is among the PCI devices. JAX uses the same test."""
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == GOOGLE and (vendor.parent / "device").read_text().strip() in TPUS:
                return True
        except OSError:
            continue
    return False


def seen(platform: str) -> Card:
    """Returns the first accelerator that JAX lists, and the number of its kind. Without one, raises PlimsollError."""
    listed = _listed(platform)
    first = listed["devices"][0]  # training on one device uses the first
    if listed["backend"] != BACKEND[platform] or not first["memory_bytes"]:
        raise PlimsollError(f"JAX finds a {first['kind']} alone")
    devices = sum(each["kind"] == first["kind"] for each in listed["devices"])
    drivers = [gpu.driver for gpu in nvidia.gpus()] if platform == "cuda" else []
    return Card(first["kind"], first["memory_bytes"], devices, driver=next(iter(drivers), ""))


@cache
def _listed(platform: str) -> dict[str, Any]:
    """Returns the devices that JAX lists in a process that allocates no device memory and prints no JAX messages."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return ask("accelerators", {}, under=environment.for_several(platform) | quiet, seconds=LOOK_SECONDS)


def free_bytes(card: Card, target: Chip) -> int:
    """Returns the bytes that a run can use on each device now: free memory, less BESIDE_BYTES outside XLA's pool."""
    free = [gpu.free_bytes - BESIDE_BYTES for gpu in _gpus_of(card, target)]
    return max(0, min(free, default=card.memory_bytes - BESIDE_BYTES))


def _gpus_of(card: Card, target: Chip) -> list[nvidia.Gpu]:
    """Returns the driver's data on the GPUs that `target` uses; an empty list if the driver does not answer."""
    return [gpu for gpu in nvidia.gpus() if gpu.kind == card.kind][: target.devices]


def held(card: Card, target: Chip) -> str:
    """Returns the names of processes that hold memory of the GPUs that `target` uses; empty if none is known."""
    return ", ".join(holder for gpu in _gpus_of(card, target) for holder in gpu.holders)


def compile_environment(target: Chip, card: Card, budget_bytes: int, *, measure: bool) -> dict[str, str]:
    """Returns environment variables of the process that compiles plans on this machine's GPU within the budget.

    To time plans (`measure`), the process allocates the whole budget at its start, as training does. If its allocator
    grew step by step, large buffers of plans that fit could fail. To only compile, it allocates nothing in advance.
    """
    share = min(1.0, budget_bytes / card.memory_bytes)
    environ = environment.on_card(share, pinned_bytes=pinned_at_most()) | _visible(target, card)
    return environ if measure else environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def pinned_at_most(planned_host: HostLedger | None = None) -> int:
    """Returns the limit, in bytes, for host memory that XLA pins (page-locks) for an accelerator and does not free.

    XLA rounds requests up to powers of two, so it may pin more than planned. The limit is the host's memory budget, or
    else the free memory less a margin, minus the process's planned bytes that are not pinned. It is at least the plan's
    pinned bytes.

    Args:
        planned_host: Planned bytes of host memory; None before there is a plan.
    """
    available = host.available_bytes()
    of_machine = available - host.margin_bytes(available)
    if planned_host is None:
        return of_machine

    # Subtract the planned bytes of the process that are not pinned.
    budget = planned_host.budget_bytes
    room = of_machine if budget is None else budget
    pinned = planned_host.pinned_bytes
    rest = planned_host.predicted_peak_bytes - pinned
    return max(pinned, room - rest)


def _visible(target: Chip, card: Card) -> dict[str, str]:
    """Returns the environment variable that limits JAX to as many GPUs as a plan uses; an empty dict if it uses all."""
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
    """Returns environment variables of the training process.

    On a GPU they limit JAX's allocator to the budget. A TPU's allocator has no limit.

    Args:
        target: Chip that the run is planned for.
        card: Accelerator to train on; None for the CPU, and for one of several processes.
        budget_bytes: Budget of the plan.
        say: Function that is called with a warning if the accelerator differs from the chip of the plan.
        devices: Number of CPU devices for JAX.
        one_heap: Whether the threads of a process that trains on the CPU share one heap of malloc.
        planned_host: Planned bytes of host memory.
    """
    if card is None:  # the CPU, or one of several processes, which already has its environment
        return environment.for_processes("cpu", devices=devices, one_heap=one_heap)
    if target.platform == "tpu":  # JAX's allocator on a TPU takes no limit
        return environment.for_several("tpu")
    planned_for = str(target.compiler.get("description", ""))
    if planned_for and card.kind != planned_for:
        say(f"this machine has a {card.kind}, and the plan was made with the figures of {target.name} ({planned_for})")
    pinned = pinned_at_most(planned_host)
    return environment.on_card(budget_bytes / card.memory_bytes, pinned_bytes=pinned) | _visible(target, card)
