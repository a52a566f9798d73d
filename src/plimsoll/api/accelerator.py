"""Accelerator of this machine, and the environment of a process that trains on it within the budget.

Only JAX knows which devices it can use. A process of its own imports it and lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planner.chips import BACKEND, Chip
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.units import format_bytes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Card:
    """A GPU of this machine, or its TPU chips, as JAX sees one of them."""

    kind: str
    memory_bytes: int
    """Bytes that its allocator can give one process."""


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
        listed = ask("accelerators", {}, under=environment.for_several(target.platform))
    except (PlimsollError, RuntimeError) as problem:
        raise RecipeError(_missing(target, f"there is none: {problem}")) from None
    first = listed["devices"][0]  # a plan for one device trains on one
    if listed["backend"] != BACKEND[target.platform] or not first["memory_bytes"]:
        raise RecipeError(_missing(target, f"JAX finds a {first['kind']} alone"))
    if len(listed["devices"]) < target.devices:
        raise RecipeError(_missing(target, f"JAX finds {len(listed['devices'])} of its {target.devices} devices"))
    return Card(**first)


def _missing(target: Chip, why: str) -> str:
    what, extra = ("an NVIDIA GPU", "cuda13") if target.platform == "cuda" else ("a TPU", "tpu")
    what = what if target.devices == 1 else f"{target.devices} devices"
    return (
        f"--chip {target.name} needs {what} in this machine that JAX can use, and {why}. `plimsoll plan` plans"
        f" for it all the same; to train on it, install JAX with its plug-in there (`pip install 'jax[{extra}]'`), or"
        " leave out --chip to train on the CPU"
    )


def training_environment(
    target: Chip, card: Card | None, budget_bytes: int, say: Say, *, devices: int = 1
) -> dict[str, str]:
    """Returns the environment of the training process.

    On a GPU it limits JAX's allocator to the budget. A TPU's allocator has no limit.

    Args:
        target: Chip that the run is planned for.
        card: Accelerator to train on; None for the CPU, and for one of several processes.
        budget_bytes: Budget of the plan.
        say: Called with a warning if the accelerator is not the one that was planned for.
        devices: Number of devices that the CPU is treated as.

    Raises:
        RecipeError: The accelerator has less memory than the budget.
    """
    if card is None:  # the CPU, or processes that have their environment already
        return environment.for_processes("cpu", devices=devices)
    if card.memory_bytes < budget_bytes:
        raise RecipeError(
            f"the {card.kind} of this machine gives a process {format_bytes(card.memory_bytes)}, and the budget for"
            f" {target.name} is {format_bytes(budget_bytes)}: ask for at most that with --memory, and --replan where"
            " the run has a plan"
        )
    if target.platform == "tpu":  # nothing notices if it goes over the budget
        return environment.for_several("tpu")
    planned_for = str(target.compiler.get("description", ""))
    if planned_for and card.kind not in planned_for:
        say(f"this machine has a {card.kind}, and the plan was made with the figures of {target.name} ({planned_for})")
    return environment.on_card(budget_bytes / card.memory_bytes)
