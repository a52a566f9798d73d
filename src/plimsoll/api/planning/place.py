"""Where a plan runs: the chip, the devices of it that are used, and the bytes of each.

Every refusal of a chip or a mesh is raised here, and of a budget that the chip does not have. That no plan fits
a budget, the search says (planner/refusal.py). JAX is not needed for that: the name of a chip says its devices, the
environment says how many a CPU is treated as, and the accelerators of this machine are listed by a process of their own
(card.py).
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
    """Mesh of devices: each has its own rows of a batch, and `fsdp` neighbours share one copy of the state."""

    data: int
    fsdp: int

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"data={self.data},fsdp={self.fsdp}" if self.fsdp > 1 else f"data={self.data}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a plan runs."""

    chip: Chip
    """With as many devices and hosts as are used."""
    budget_bytes: int
    """Budget of each device."""
    host_budget_bytes: int | None = None
    """Budget of each host beside its accelerators; None where the host is the device, or nobody says."""
    card: Card | None = None
    """The accelerator of this machine that plans are compiled and timed on; None where there is none."""
    mesh: Mesh | None = None
    """Mesh that was requested; None where the planner chooses how many devices share a copy of the state."""
    reserve_bytes: int = 0
    """Bytes that stay free beyond the prediction: what a run that exceeded its budget has learned."""


def place_of(question: Question, say: Say = quiet, *, processes: int = 1, trains: bool = False) -> Place:
    """Returns the place of a question.

    Args:
        question: What the user wants a plan for.
        say: Called with each choice and its reason.
        processes: Processes that train together; each CPU has as many devices.
        trains: Whether training follows, for which the accelerator has to be here, with the budget free.

    Raises:
        RecipeError: There is no such chip or mesh, it cannot be planned for, or its devices cannot have equal parts.
        BudgetError: Others hold too much of the accelerator's memory.
    """
    # The chip, and the accelerator of this machine if it is one.
    mesh = parse_mesh(question.mesh)
    whole = chip_here(say, batch=question.batch, mesh=mesh) if question.chip is None else chip_named(question.chip)
    chip = with_devices(whole, question, mesh, processes)
    card = None
    if processes == 1:
        card = require_card(whole) if trains else card_here(whole)
    _require_rates(chip, card, measure=question.measure)

    # Bytes.
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


# Chips.


def chip_named(name: str) -> Chip:
    """Returns a chip by its name: one of `plimsoll chips`, or the card that is here and in no list."""
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
    """Returns the chip where none is named: the accelerator that JAX sees here, else the CPU.

    Of several equal GPUs it takes as many as share a batch equally, all of them if they do.

    Args:
        say: Called with the choice and its reason.
        batch: Examples that several devices share.
        mesh: Mesh that was requested: it says how many devices are used.
        root: Root of the file system in which drivers are looked for.

    Raises:
        RecipeError: A driver and JAX's plug-in are here, and JAX cannot use the accelerator.
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
            f"{cards.WORDS[platform]} and JAX's plug-in for it are in this machine, and JAX cannot use it: {words}."
            " Mend that (`plimsoll doctor` asks again), or train on the CPU with --chip cpu"
        ) from None
    chip = _slice_of(card) if platform == "tpu" else _gpus_of(card, batch, mesh)
    said = f"on {chip.name}: JAX sees {card.devices} x {card.kind}, used: {chip.devices}"
    say(said if chip.flops else f"{said}; no list of chips has it: its memory is the driver's, its rates are measured")
    return chip


def _slice_of(card: Card) -> Chip:
    """Returns the TPU slice of one host that is here."""
    family = cards.TPU_FAMILIES.get(card.kind)
    for chip in chips.chips():
        if chip.name.rpartition("-")[0] == family and (chip.devices, chip.hosts) == (card.devices, 1):
            return chip
    raise RecipeError(
        f"JAX sees {card.devices} x {card.kind}, and no slice of one host that `plimsoll chips` lists is that: name the"
        " slice with --chip, or train on the CPU with --chip cpu"
    )


def _gpus_of(card: Card, batch: int, mesh: Mesh | None) -> Chip:
    """Returns as many of the GPUs that are here as the mesh has, or share the batch equally.

    It is one where nobody knows how fast they reach one another.
    """
    one, listed = _chip_of(card), chips.chip_called(card.kind)
    if listed is None or not listed.link_bandwidth:
        return one
    sharing = [count for count in GPUS_IN_A_MACHINE if count <= card.devices and batch % count == 0]
    devices = max(sharing, default=1) if mesh is None else mesh.devices
    return one if devices == 1 else chips.chip(f"{one.name}x{devices}")


def _chip_of(card: Card) -> Chip:
    """Returns the catalogue's chip of a GPU; else one with the driver's memory, whose rates are to be measured."""
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
        sources={"memory_bytes": "the driver's total, less 1 GiB for what lies beside XLA's pool"},
    )


def card_here(chip: Chip) -> Card | None:
    """Returns the GPU of this machine if it is of the kind that `chip` is, and as many as it has; else None."""
    if chip.platform != "cuda" or cards.platform_here()[0] != "cuda":
        return None
    try:
        card = cards.seen("cuda")
    except (PlimsollError, RuntimeError):  # a plan for it needs none: training will say what is wrong
        return None
    return card if card.kind == chip.compiler.get("description") and card.devices >= chip.devices else None


def require_card(chip: Chip) -> Card | None:
    """Returns the accelerator that is to be trained on; None for the CPU.

    Raises:
        RecipeError: JAX finds no such accelerator here, or the chip has several hosts.
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
            " `plimsoll plan` plans for it all the same; to train on it, install JAX with its plug-in there"
            f" (`pip install 'jax[{cards.EXTRAS[chip.platform]}]'`), or train on the CPU with --chip cpu"
        ) from None
    return card


def _require_rates(chip: Chip, card: Card | None, *, measure: bool) -> None:
    """Raises RecipeError where plans are to be timed on a chip that is not here, or nobody knows the chip's rates."""
    if card is not None or chip.platform == "cpu":
        return
    if measure:
        raise RecipeError(f"--measure times plans on the chip at hand, and {chip.name} is not: leave it out")
    if not chip.flops:
        raise RecipeError(
            f"{chip.name} is in no list of chips, and JAX cannot use as many of them here: its rates are not known."
            " Add it to a chip file (docs/chips.md)"
        )


# Devices.


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


def with_devices(chip: Chip, question: Question, mesh: Mesh | None, processes: int) -> Chip:
    """Returns the chip with as many devices and hosts as a run uses.

    The devices of an accelerator are part of its name. Of a CPU the run uses those of the mesh; without one, as many as
    get equal parts of a micro-batch.

    Raises:
        RecipeError: The devices are not here, cannot get equal parts, or the mesh contradicts a lever.
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

    # The hosts of a TPU are part of its name.
    is_shared = is_cpu or (chip.platform == "cuda" and devices % processes == 0)
    return replace(chip, devices=devices, hosts=processes if is_shared else chip.hosts)


def _require_mesh(mesh: Mesh, question: Question, chip: Chip, here: int, processes: int) -> None:
    """Raises RecipeError where the mesh contradicts --fsdp, does not share a batch equally, or has other devices."""
    fsdp = question.pins.get("fsdp", mesh.fsdp)
    if fsdp != mesh.fsdp:
        raise RecipeError(
            f"--mesh {mesh} and --fsdp {fsdp} contradict each other: a mesh says fsdp itself. Give one of them"
        )
    if question.batch % mesh.devices:
        is_pinned = "micro_batch" in question.pins
        what = "--micro-batch" if is_pinned else "--batch-size x --gradient-accumulation-steps"
        raise RecipeError(
            f"--mesh {mesh} gives each of {mesh.devices} devices as many examples of a micro-batch, and"
            f" {question.batch} examples ({what}) are no multiple of {mesh.devices}: take a multiple of it, or another"
            " mesh"
        )
    fits = mesh.devices <= here and mesh.devices % processes == 0 if chip.platform == "cpu" else mesh.devices == here
    if not fits:
        parts = "" if processes == 1 else f", in equal parts for {processes} processes"
        raise RecipeError(
            f"--mesh {mesh} needs {mesh.devices} devices{parts}, and {chip.name} has {here}: take a mesh of as many, or"
            " another --chip (h100x8 is eight in one machine). The CPU of a process is taken for as many as"
            f" {CPU_DEVICES} says"
        )


def cpu_devices() -> int:
    """Returns the number of devices that JAX makes of the CPU in one process; 1 by default."""
    count = whole_number(os.environ.get(CPU_DEVICES, ""))
    if count is not None:
        return max(1, count)
    forced = re.findall(rf"{FORCED_DEVICES}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(1, int(forced[-1])) if forced else 1


def elsewhere(planned: Planned, mesh: str | None, target: Chip, *, processes: int = 1) -> str | None:
    """Returns why a run's plan cannot be kept on the devices that are here now, in words; None if it can.

    Args:
        planned: The run's plan.
        mesh: Mesh that is requested now, as text.
        target: Chip to train on.
        processes: Number of processes that train together now.
    """
    if target.platform != "cpu":
        return None
    plan = planned.plan
    before, requested = Mesh(plan.devices // plan.fsdp, plan.fsdp), parse_mesh(mesh)
    if requested not in (None, before):
        return f"was planned for a mesh of {before}, and --mesh says {requested}"
    if planned.hosts != processes:
        return f"was planned for {planned.hosts} processes, and {processes} train it now"
    here = cpu_devices() * processes
    return f"was planned for {plan.devices} devices, and there are {here} now" if plan.devices > here else None


# Bytes.


def budget_bytes(memory: str | float | None, chip: Chip, card: Card | None = None, say: Say = quiet) -> int:
    """Returns the budget of one device: `memory`, else what is available here less a margin, or what the chip has.

    Args:
        memory: Budget that was requested.
        chip: Chip that is planned for.
        card: That chip, where it is in this machine: by default no more than what is free of it.
        say: Called with how the budget was read, or with who holds the rest.

    Raises:
        RecipeError: `memory` cannot be read, or is more than the chip has.
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
    """Returns the budget that an option says. How it was read is said."""
    budget = parse_budget(text, option=option)
    if read := as_read(text):
        say(f"{option} {read}")
    return budget


def _most_bytes(chip: Chip, card: Card | None) -> int:
    """Returns the bytes of an accelerator's device that a run can use."""
    return chip.memory_bytes if card is None else min(chip.memory_bytes, card.memory_bytes)


def _available_bytes(chip: Chip, card: Card | None, say: Say) -> int:
    """Returns the budget where none is requested: what is free here, or all of a device that is not here."""
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
    """Returns the budget of a host beside its accelerators; None where nobody says."""
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
    """Raises BudgetError if the accelerator has less memory, or less that is free, than the budget.

    Args:
        card: The accelerator; None for the CPU, and for one of several processes.
        chip: The chip, with the devices that are used.
        budget: Bytes of each device.
    """
    if card is None:
        return
    free = card.memory_bytes
    if chip.platform == "cuda":
        free = min(free, cards.free_bytes(card, chip))
    if budget <= free:
        return
    who = cards.held(card, chip) or "the driver names none: they may be in another container"
    raise BudgetError(
        f"the budget is {format_bytes(budget)} per device, and the {card.kind} of this machine has {format_bytes(free)}"
        f" that a run can use now, of {format_bytes(card.memory_bytes)}. Processes that hold memory of it: {who}. End"
        f" them, or ask for at most --memory {free // MIB}MiB, and --replan where the run has a plan",
        budget_bytes=budget,
        floor_bytes=None,
    )
