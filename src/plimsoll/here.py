"""The accelerator of this machine, and the process that trains on it inside the budget.

Part of the joint. Only JAX knows what it can use, so it is asked, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from plimsoll import environment
from plimsoll.ask import ask
from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planner.chips import Chip
from plimsoll.units import format_bytes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Card:
    """A GPU of this machine, as JAX sees it."""

    kind: str
    memory_bytes: int
    """What its allocator could give one process."""


def card_for(target: Chip) -> Card | None:
    """What `train` is to run on, before anything is planned; None for the CPU. Refuses what is not here."""
    if target.platform == "cpu":
        return None
    if target.platform == "tpu":
        raise RecipeError(
            f"--chip {target.name} is a TPU, and training on one is not built yet: `plimsoll plan` plans for it; train"
            " on cpu or on one NVIDIA GPU"
        )
    if target.devices > 1:
        raise RecipeError(
            f"--chip {target.name} is {target.devices} devices, and training runs on one: `plimsoll plan` plans for"
            " several; name one device"
        )
    try:
        found = ask("accelerators", {}, under=environment.on_card(1.0))
    except (PlimsollError, RuntimeError) as problem:
        raise RecipeError(_missing(target, f"there is none: {problem}")) from None
    first = found["devices"][0]  # what is planned for one device trains on one
    if found["backend"] != "gpu" or not first["memory_bytes"]:
        raise RecipeError(_missing(target, f"JAX finds a {first['kind']} alone"))
    return Card(**first)


def _missing(target: Chip, why: str) -> str:
    return (
        f"--chip {target.name} needs an NVIDIA GPU in this machine that JAX can use, and {why}. `plimsoll plan` plans"
        " for it all the same; to train on it, install JAX with its plug-in there (`pip install 'jax[cuda13]'`), or"
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
    told = str(target.compiler.get("description", ""))
    if told and card.kind not in told:
        say(f"this machine has a {card.kind}, and the plan was made with the figures of {target.name} ({told})")
    return environment.on_card(budget_bytes / card.memory_bytes)
