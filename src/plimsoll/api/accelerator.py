"""The accelerator of this machine, and the process that trains on it inside the budget.

Part of the joint. Only JAX knows what it can use, so it is asked, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planner.chips import Chip
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.units import format_bytes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Card:
    """A GPU of this machine, or its TPU chips, as JAX sees one of them."""

    kind: str
    memory_bytes: int
    """What its allocator could give one process."""


def card_for(target: Chip) -> Card | None:
    """What `train` is to run on, before anything is planned; None for the CPU. Refuses what is not here."""
    if target.platform == "cpu":
        return None
    if target.hosts > 1:
        raise RecipeError(
            f"--chip {target.name} is {target.devices} devices in {target.hosts} machines, and this command was started"
            " by itself: start it on each of them, by their cluster or with --coordinator, --processes and --process"
            " (docs/scale.md)"
        )
    try:
        found = ask("accelerators", {}, under=environment.for_several(target.platform))
    except (PlimsollError, RuntimeError) as problem:
        raise RecipeError(_missing(target, f"there is none: {problem}")) from None
    first = found["devices"][0]  # what is planned for one device trains on one
    if found["backend"] != BACKEND[target.platform] or not first["memory_bytes"]:
        raise RecipeError(_missing(target, f"JAX finds a {first['kind']} alone"))
    if len(found["devices"]) < target.devices:
        raise RecipeError(_missing(target, f"JAX finds {len(found['devices'])} of its {target.devices} devices"))
    return Card(**first)


BACKEND = {"cuda": "gpu", "tpu": "tpu"}


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
    """Of the training process. On a GPU its allocator gets the budget as its limit, before JAX starts; a CPU is taken
    for so many `devices`."""
    if card is None:  # the CPU, or processes that have their environment already
        return environment.for_processes("cpu", devices=devices)
    if card.memory_bytes < budget_bytes:
        raise RecipeError(
            f"the {card.kind} of this machine gives a process {format_bytes(card.memory_bytes)}, and the budget for"
            f" {target.name} is {format_bytes(budget_bytes)}: ask for at most that with --memory, and --replan where"
            " the run has a plan"
        )
    if target.platform == "tpu":  # its allocator takes no limit: what goes beyond the budget is not noticed
        return environment.for_several("tpu")
    told = str(target.compiler.get("description", ""))
    if told and card.kind not in told:
        say(f"this machine has a {card.kind}, and the plan was made with the figures of {target.name} ({told})")
    return environment.on_card(budget_bytes / card.memory_bytes)
