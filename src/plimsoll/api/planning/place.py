"""Place of a plan: the chip, the number of its devices to use, and their memory budgets.

This module raises errors for invalid chips and meshes, and for budgets above the chip's memory. The search raises
errors for budgets that no plan fits (planner/refusal.py). JAX is not imported. The number of devices follows from the
chip's name, or on a CPU from environment variables. A separate process lists this machine's accelerators (card.py).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning import card as cards
from plimsoll.api.planning.card import Card
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, PlimsollError, RecipeError
from plimsoll.planned import Planned
from plimsoll.planner import chips, host
from plimsoll.planner.chips import GPUS_IN_A_MACHINE, Chip
from plimsoll.processes.environment import CPU_DEVICES, FORCED_DEVICES
from plimsoll.units import MIB, as_read, format_bytes, parse_budget, whole_number

AXES = ("data", "fsdp")


@dataclass(frozen=True)
class Mesh:
    """Mesh of `data` x `fsdp` devices, which split each batch. Along axis `fsdp` they also split the training state."""

    data: int
    fsdp: int

    @property
    def devices(self) -> int:
        """Number of devices in the mesh."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"data={self.data},fsdp={self.fsdp}" if self.fsdp > 1 else f"data={self.data}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a plan: the chip with the number of devices to use, and the memory budgets."""

    chip: Chip
    """Chip with the number of devices and hosts that are used."""
    budget_bytes: int
    """Budget of each device, in bytes."""
    host_budget_bytes: int | None = None
    """Host memory budget of each machine with accelerators, in bytes; None on a CPU, or if it is unknown."""
    card: Card | None = None
    """This machine's accelerator, if the plan is for it; None for a CPU, a chip elsewhere, or several processes."""
    mesh: Mesh | None = None
    """Mesh that the user requested; None to let the planner choose `fsdp`."""
    reserve_bytes: int = 0
    """Safety margin in bytes above the predicted peak, if the run has exceeded its budget before."""


def place_of(question: Question, say: Say = quiet, *, processes: int = 1, trains: bool = False) -> Place:
    """Chooses where a plan runs: the chip, the mesh and the memory budgets for the user's request.

    Args:
        question: The user's planning request.
        say: Function that is called with each choice and its reason.
        processes: Number of processes that train together. On CPUs each has as many devices as JAX makes of this CPU.
        trains: Whether training follows. If so, the accelerator must be in this machine, and have the budget free.

    Raises:
        RecipeError: The chip or mesh does not exist, cannot be planned for, or cannot split the batch equally.
        BudgetError: Other processes hold too much of the accelerator's memory.
    """
    # Choose the chip, and find it among the accelerators of this machine.
    mesh = parse_mesh(question.mesh)
    whole = chip_here(say, batch=question.batch, mesh=mesh) if question.chip is None else chip_named(question.chip)
    chip = with_devices(whole, question, mesh, processes)
    card = None
    if processes == 1:
        card = require_card(whole) if trains else card_here(whole)
    _require_rates(chip, card, measure=question.measure)

    # Determine the budgets.
    budget = budget_bytes(question.memory, chip, card, say)
    if question.measure or trains:
        require_free(card, chip, budget)
    return Place(
        chip=chip,
        budget_bytes=budget,
        host_budget_bytes=_host_budget(question.host_memory, chip, say),
        card=card,
        mesh=mesh,
    )


# Choice of the chip.


def chip_named(name: str) -> Chip:
    """Returns the chip called `name`: one of `plimsoll chips`, or an unlisted GPU of this machine."""
    try:
        return chips.chip(name)
    except RecipeError:
        if cards.platform_here()[0] != "cuda":
            raise
        here = _chip_of(cards.seen("cuda"))
        if here.name != name:
            raise
        return here


def chip_here(say: Say, *, batch: int, mesh: Mesh | None = None, root: Path = Path("/")) -> Chip:
    """Returns the default chip: this machine's accelerator, or else its CPU.

    With several equal GPUs, the chip has the largest number of them that divides the batch equally.

    Args:
        say: Function that is called with the choice and its reason.
        batch: Number of examples that the devices split.
        mesh: Mesh that the user requested. It determines the number of devices.
        root: Root of the file system in which to look for drivers.

    Raises:
        RecipeError: A driver and JAX's plug-in are in this machine, but JAX cannot use the accelerator.
    """
    platform, why_none = cards.platform_here(root)
    if platform is None:
        say(f"on the CPU: {why_none}")
        return chips.chip("cpu")
    say(f"asking JAX for {cards.WORDS[platform]}")
    try:
        card = cards.seen(platform)
    except (PlimsollError, RuntimeError) as problem:
        words = str(problem).rstrip(".")
        raise RecipeError(
            f"{cards.WORDS[platform]} and JAX's plug-in for it are in this machine, but JAX cannot use it: {words}."
            " Mend that (`plimsoll doctor` checks again), or train on the CPU with --chip cpu"
        ) from None
    chip = _slice_of(card) if platform == "tpu" else _gpus_of(card, batch, mesh)
    said = f"on {chip.name}: JAX sees {card.devices} x {card.kind}, used: {chip.devices}"
    unlisted = f"{said}; no list of chips has this GPU: its memory is the driver's, its rates are measured"
    say(said if chip.flops else unlisted)
    return chip


def _slice_of(card: Card) -> Chip:
    """Returns the TPU slice in `plimsoll chips` that this machine has. Raises RecipeError if there is none."""
    family = cards.TPU_FAMILIES.get(card.kind)
    for chip in chips.chips():
        if chip.name.rpartition("-")[0] == family and (chip.devices, chip.hosts) == (card.devices, 1):
            return chip
    raise RecipeError(
        f"JAX sees {card.devices} x {card.kind}, and no slice of one host in `plimsoll chips` matches: name the slice"
        " with --chip, or train on the CPU with --chip cpu"
    )


def _gpus_of(card: Card, batch: int, mesh: Mesh | None) -> Chip:
    """Returns this machine's GPUs as a chip: as many as the mesh has, or the most that divide the batch equally.

    The chip has only one GPU if the speed of links between the GPUs is unknown.
    """
    one, listed = _chip_of(card), chips.chip_called(card.kind)
    if listed is None or not listed.link_bandwidth:
        return one
    sharing = [count for count in GPUS_IN_A_MACHINE if count <= card.devices and batch % count == 0]
    devices = max(sharing, default=1) if mesh is None else mesh.devices
    return one if devices == 1 else chips.chip(f"{one.name}x{devices}")


def _chip_of(card: Card) -> Chip:
    """Returns the chip of a GPU in `plimsoll chips`, or for another GPU one without speeds, which planning measures."""
    listed = chips.chip_called(card.kind)
    if listed is not None:
        return chips.chip(listed.name)
    return Chip(
        name=re.sub(r"[^a-z0-9]+", "-", card.kind.lower()).strip("-"),
        platform="cuda",
        devices=1,
        hosts=1,
        memory_bytes=card.memory_bytes - cards.BESIDE_BYTES,
        flops={},
        memory_bandwidth=0.0,
        link_bandwidth=0.0,
        host_link_bandwidth=0.0,
        host_memory_bytes=None,
        compiler={"description": card.kind},
        sources={"memory_bytes": "the driver's total, less 1 GiB outside XLA's pool"},
    )


def card_here(chip: Chip) -> Card | None:
    """Returns this machine's GPU if it is of the chip's kind and the machine has enough of them; else None."""
    if chip.platform != "cuda" or cards.platform_here()[0] != "cuda":
        return None
    try:
        card = cards.seen("cuda")
    except (PlimsollError, RuntimeError):  # planning needs no GPU, and training reports the error
        return None
    return card if card.kind == chip.compiler.get("description") and card.devices >= chip.devices else None


def require_card(chip: Chip) -> Card | None:
    """Returns the accelerator to train on; None for the CPU.

    Raises:
        RecipeError: JAX finds no such accelerator in this machine, or the chip has several hosts.
    """
    if chip.platform == "cpu":
        return None
    if chip.hosts > 1:
        raise RecipeError(
            f"--chip {chip.name} is {chip.devices} devices in {chip.hosts} machines, and this command was started by"
            " itself: start it on each of them, by their cluster or with --coordinator, --processes and --process"
            " (docs/scale.md)"
        )
    try:
        card = cards.seen(chip.platform)
        if card.devices < chip.devices:
            raise PlimsollError(f"JAX finds {card.devices} of its {chip.devices} devices")
    except (PlimsollError, RuntimeError) as problem:
        what = cards.WORDS[chip.platform] if chip.devices == 1 else f"{chip.devices} devices"
        raise RecipeError(
            f"--chip {chip.name} needs {what} in this machine that JAX can use, and there is none: {problem}."
            " `plimsoll plan` works without the chip. To train on the chip, install JAX with its plug-in"
            f" (`pip install 'jax[{cards.EXTRAS[chip.platform]}]'`), or train on the CPU with --chip cpu"
        ) from None
    return card


def _require_rates(chip: Chip, card: Card | None, *, measure: bool) -> None:
    """Raises RecipeError for a chip that is not in this machine, if `measure` is set or its speed is unknown."""
    if card is not None or chip.platform == "cpu":
        return
    if measure:
        raise RecipeError(f"--measure times plans on the chip at hand, and {chip.name} is not here: leave it out")
    if not chip.flops:
        raise RecipeError(
            f"{chip.name} is in no list of chips, and JAX cannot use that many of them here to measure them. Add it to"
            " a chip file (docs/chips.md)"
        )


# Number of devices.


def parse_mesh(text: str | None) -> Mesh | None:
    """Parses a mesh like `data=8`, `data=4,fsdp=2` or `fsdp=8`. A missing axis has size 1.

    Raises:
        RecipeError: The text is not a mesh.
    """
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


def with_devices(chip: Chip, question: Question, mesh: Mesh | None, processes: int) -> Chip:
    """Returns the chip with the number of devices and hosts that a run uses.

    An accelerator's name includes its number of devices. On a CPU the run uses the devices of the mesh, or without a
    mesh the largest number that divides a micro-batch equally.

    Raises:
        RecipeError: The mesh needs devices that do not exist, cannot divide a batch equally, or contradicts --fsdp.
    """
    is_cpu = chip.platform == "cpu"
    here = cpu_devices() * processes if is_cpu else chip.devices
    devices = here
    if mesh is not None:
        _require_mesh(mesh, question, chip, here, processes)
        devices = mesh.devices
    elif is_cpu:
        parts = question.batch // question.recipe.hints.normalised_together
        devices = max((n for n in range(processes, here + 1, processes) if parts % n == 0), default=processes)

    # On CPUs and GPUs each process counts as one host. The name of a TPU slice determines its number of hosts.
    is_shared = is_cpu or (chip.platform == "cuda" and devices % processes == 0)
    return replace(chip, devices=devices, hosts=processes if is_shared else chip.hosts)


def _require_mesh(mesh: Mesh, question: Question, chip: Chip, here: int, processes: int) -> None:
    """Raises RecipeError if the mesh contradicts --fsdp, cannot divide a batch equally, or has a wrong size."""
    fsdp = question.pins.get("fsdp", mesh.fsdp)
    if fsdp != mesh.fsdp:
        raise RecipeError(
            f"--mesh {mesh} and --fsdp {fsdp} contradict each other: a mesh sets fsdp itself. Give one of them"
        )
    if question.batch % mesh.devices:
        is_pinned = "micro_batch" in question.pins
        what = "--micro-batch" if is_pinned else "--batch-size x --gradient-accumulation-steps"
        raise RecipeError(
            f"--mesh {mesh} splits a batch equally over {mesh.devices} devices, and {question.batch} examples ({what})"
            f" are no multiple of {mesh.devices}: choose a multiple of {mesh.devices}, or another mesh"
        )
    fits = mesh.devices <= here and mesh.devices % processes == 0 if chip.platform == "cpu" else mesh.devices == here
    if not fits:
        parts = "" if processes == 1 else f", in equal parts for {processes} processes"
        if chip.platform == "cpu":
            advice = f"set {CPU_DEVICES}, the number of devices that JAX makes of each process's CPU"
        else:
            advice = "choose another --chip, like h100x8 for eight in one machine"
        raise RecipeError(
            f"--mesh {mesh} needs {mesh.devices} devices{parts}, and {chip.name} has {here}: choose a mesh of {here}"
            f" devices, or {advice}"
        )


def cpu_devices() -> int:
    """Returns the number of CPU devices that JAX has in one process; 1 by default."""
    count = whole_number(os.environ.get(CPU_DEVICES, ""))
    if count is not None:
        return max(1, count)
    forced = re.findall(rf"{FORCED_DEVICES}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(1, int(forced[-1])) if forced else 1


def elsewhere(planned: Planned, mesh: str | None, target: Chip, *, processes: int = 1) -> str | None:
    """Returns the reason why a run's plan cannot be kept on the present devices; None if it can.

    Args:
        planned: The run's plan.
        mesh: Text of the mesh that the user requests now.
        target: Chip to train on.
        processes: Number of processes that train together now.
    """
    plan = planned.plan
    before, requested = Mesh(plan.devices // plan.fsdp, plan.fsdp), parse_mesh(mesh)
    if requested not in (None, before):
        return f"was planned for a mesh of {before}, and --mesh says {requested}"
    if target.platform != "cpu":
        return None
    if planned.hosts != processes:
        return f"was planned for {planned.hosts} processes, and {processes} train it now"
    here = cpu_devices() * processes
    return f"was planned for {plan.devices} devices, and there are {here} now" if plan.devices > here else None


# Budgets.


def budget_bytes(memory: str | float | None, chip: Chip, card: Card | None = None, say: Say = quiet) -> int:
    """Returns the memory budget of one device in bytes.

    By default it is the free memory: on a CPU less a margin for other processes, and for a chip that is not in this
    machine all memory that a run can use.

    Args:
        memory: Budget that the user requested; None for the default.
        chip: Chip to plan for.
        card: Accelerator of this machine that is the chip; None for a CPU or another chip.
        say: Function that is called with the interpretation of `memory`, or with the processes that hold memory.

    Raises:
        RecipeError: `memory` cannot be parsed, or is more than the chip has.
    """
    if memory is None:
        return _available_bytes(chip, card, say)
    budget = _budget_typed(memory, "--memory", say)
    most = _most_bytes(chip, card)
    if chip.platform != "cpu" and budget > most:
        raise RecipeError(
            f"--memory {memory} is {format_bytes(budget)} per device, and a device of {chip.name} has"
            f" {format_bytes(most)} that a run can use: ask for at most --memory {most // MIB}MiB"
        )
    return budget


def _budget_typed(text: str | float, option: str, say: Say) -> int:
    """Parses the value of a memory option. Prints the interpretation of an ambiguous unit, as in 2G."""
    budget = parse_budget(text, option=option)
    if read := as_read(text):
        say(f"{option} {read}")
    return budget


def _most_bytes(chip: Chip, card: Card | None) -> int:
    """Returns the largest number of bytes that a run can use on one device of an accelerator."""
    return chip.memory_bytes if card is None else min(chip.memory_bytes, card.memory_bytes)


def _available_bytes(chip: Chip, card: Card | None, say: Say) -> int:
    """Returns the default budget in bytes: free memory, or all usable memory of a chip not in this machine."""
    if chip.platform == "cpu":
        available = host.available_bytes()
        return available - host.margin_bytes(available)
    most = _most_bytes(chip, card)
    if card is None or chip.platform == "tpu":
        return most
    free = cards.free_bytes(card, chip)
    if free < 0.9 * most:
        who = cards.held(card, chip) or "processes that the driver does not name"
        say(f"{format_bytes(free)} of the {card.kind} can be used now: {who} hold the rest")
    return min(most, free)


def _host_budget(host_memory: str | float | None, chip: Chip, say: Say) -> int | None:
    """Returns the host memory budget of a machine with accelerators in bytes; None on a CPU, or if it is unknown."""
    if chip.platform == "cpu":
        if host_memory is not None:
            raise RecipeError(
                "--host-memory is for the host beside an accelerator, and cpu is the host: --memory counts all of it"
            )
        return None
    if host_memory is None:
        return chip.host_memory_bytes
    return _budget_typed(host_memory, "--host-memory", say)


def require_free(card: Card | None, chip: Chip, budget: int) -> None:
    """Raises BudgetError if the budget is more than the accelerator's memory, or more than its free memory.

    Args:
        card: The accelerator; None for the CPU, and for one of several processes.
        chip: Chip with the number of devices that are used.
        budget: Budget of each device, in bytes.
    """
    if card is None:
        return
    free = card.memory_bytes
    if chip.platform == "cuda":
        free = min(free, cards.free_bytes(card, chip))
    if budget <= free:
        return
    if budget > card.memory_bytes:
        raise BudgetError(
            f"the budget is {format_bytes(budget)} per device, and the {card.kind} of this machine has"
            f" {format_bytes(card.memory_bytes)}. Ask for at most --memory {free // MIB}MiB, and add --replan if the"
            " run has a plan",
            budget_bytes=budget,
            floor_bytes=None,
        )
    who = cards.held(card, chip) or "the driver names none: they may be in another container"
    raise BudgetError(
        f"the budget is {format_bytes(budget)} per device, and the {card.kind} of this machine has {format_bytes(free)}"
        f" that a run can use now, of {format_bytes(card.memory_bytes)}. Processes that hold memory of it: {who}. End"
        f" them, or ask for at most --memory {free // MIB}MiB, and add --replan if the run has a plan",
        budget_bytes=budget,
        floor_bytes=None,
    )
