"""Finds the fastest plan for a recipe whose predicted peak fits a memory budget: `plimsoll.plan`.

It does not import JAX: compiling happens in a child."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.api import notebook
from plimsoll.api.mesh import over_devices
from plimsoll.api.pins import require_levers, require_supported
from plimsoll.errors import RecipeError
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.records.batch import PREFETCH
from plimsoll.planned import Planned
from plimsoll.planner import calibration, chips, host
from plimsoll.planner.child import Child
from plimsoll.planner.chips import Chip
from plimsoll.planner.search import search
from plimsoll.planner.types import Learned, Problem
from plimsoll.processes import environment, toolchains
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.own.files import short_name
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import name_of, to_dict
from plimsoll.training import disk
from plimsoll.units import format_bytes, parse_bytes

Say = Callable[[str], None]

UNKNOWN_STEPS = 10_000
"""Length of the schedule where nobody has said or counted it: changes no byte."""


def printing(*, quiet: bool) -> Say:
    """Returns the function that prints messages at once, also into a file; nothing if `quiet`."""
    return (lambda text: None) if quiet else (lambda text: print(text, flush=True))


def plan(
    recipe: Recipe | str,
    *,
    name: str | None = None,
    memory: str | int | None = None,
    host_memory: str | int | None = None,
    chip: str = "cpu",
    mesh: str | None = None,
    processes: int = 1,
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    measure: bool = False,
    pinned_by: str | None = None,
    prepared: Prepared | None = None,
    margin_bytes: int = 0,
    say: Say = lambda text: None,
) -> Planned:
    """Returns the fastest plan for `recipe` whose predicted peak fits `memory`; allocates nothing unless `measure`.

    `mesh` says how many devices share the work and the state, like "data=4,fsdp=2"; without it all that are there do.
    `processes` of a CPU have as many each. `memory` is per device; `host_memory` is each host's beside its
    accelerators. `prepared` says what is known of the data; without it nothing of the data is read. `pinned_by` is
    where `pins` come from, if nobody typed them. `measure` times the best few, on the chip at hand only.
    `margin_bytes` stay free, beyond the prediction, in the phases that a plan decides about: what a run that went over
    its budget has learned.
    Raises BudgetError, with the smallest peak found and what would fit, if nothing does.
    """
    name, recipe = named(recipe, name)
    target, pins = over_devices(chips.chip(chip), recipe, pins or {}, mesh, processes=processes)
    if measure and target.platform != "cpu":
        raise RecipeError(f"--measure times plans on the chip at hand, and {chip} is not: leave it out")
    samples = None
    if calibration.is_on():
        samples, unreadable = calibration.read(environment.cache_folder(), calibration.key_of(recipe.kind, chip))
        if unreadable is not None:
            say(unreadable)
    problem = _problem(
        recipe,
        target,
        prepared,
        recipe=name,
        budget_bytes=budget_bytes(memory, target),
        host_budget_bytes=_host_budget(host_memory, target),
        numerics=numerics,
        pins=pins,
        pinned_by=pinned_by,
        measure=measure,
        learned=Learned(corrections=calibration.corrections(samples or []), margin_bytes=margin_bytes),
    )
    about = {"recipe": to_dict(recipe), "steps": (prepared or recipe).steps or UNKNOWN_STEPS}
    command, variables = _compile_process(target, about, say)
    with Child(command, variables, about=about, answers=environment.cache_folder() / "answers") as compiler:
        planned = search(problem, compiler, say)
        further = {
            "margin_bytes": margin_bytes,
            "error_band": None if samples is None else calibration.error_band(samples),
            "estimate_band": calibration.estimate_band(planned.ledger),
            "disk": disk.needed(compiler.static().state_bytes),
        }
        return notebook.ShownPlan(**vars(planned) | further)


def _compile_process(target: Chip, about: dict[str, Any], say: Say) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of the child for this chip; `about` gets what its answers depend on."""
    if target.platform == "cpu":
        command = [sys.executable, "-m", "plimsoll.worker", "compile"]
        about |= {"devices": target.devices} if target.devices > 1 else {}
    else:
        python = toolchains.python_for(target.platform)
        if python is None:
            say(
                f"the compiler for {target.name} is {toolchains.missing(target.platform)}. Its bytes are estimated"
                f" until `plimsoll chips --install {target.platform}` has made it"
            )
        about |= {"chip": dataclasses.asdict(target), "compiled": python is not None}
        command = [str(python or sys.executable), "-m", "plimsoll.worker", "cross-compile"]
    devices = target.devices if target.platform == "cpu" else None  # of all processes: one child compiles for them
    return [*command, json.dumps(about)], environment.for_processes(target.platform, devices=devices)


def budget_bytes(memory: str | int | None, target: Chip | None = None) -> int:
    """Returns the budget of one device: `memory`, else what is available here less a margin, or what the chip has."""
    elsewhere = target if target is not None and target.platform != "cpu" else None
    if memory is None:
        available = host.available_bytes() if elsewhere is None else elsewhere.memory_bytes
        return available - host.margin_bytes(available) if elsewhere is None else available
    budget = parse_bytes(memory)
    if elsewhere is not None and budget > elsewhere.memory_bytes:
        raise RecipeError(
            f"--memory {memory} is {format_bytes(budget)} per device, and a device of {elsewhere.name} has"
            f" {format_bytes(elsewhere.memory_bytes)} that a run can use: ask for at most that"
        )
    return budget


def _host_budget(host_memory: str | int | None, target: Chip) -> int | None:
    if target.platform == "cpu":
        if host_memory is not None:
            raise RecipeError(
                "--host-memory is for the host beside an accelerator, and cpu is the host: --memory counts all of it"
            )
        return None
    return target.host_memory_bytes if host_memory is None else parse_bytes(host_memory)


def named(recipe: Recipe | str, name: str | None) -> tuple[str, Recipe]:
    """Returns the recipe and its name: the user's, else its kind or file."""
    if isinstance(recipe, str):
        return name or short_name(recipe), preset(recipe)
    return name or name_of(recipe), recipe


def _problem(described: Recipe, target: Chip, prepared: Prepared | None, **requested: Any) -> Problem:
    """Returns what the search has to know: what was requested, and what the recipe, the chip and the data say."""
    pins = requested["pins"]
    if requested["numerics"] not in CLASSES:
        raise RecipeError(f"--numerics {requested['numerics']} is not one of {', '.join(CLASSES)}")
    require_levers(pins)
    require_supported(described, pins)
    prefetches = [pins["prefetch"]] if "prefetch" in pins else PREFETCH
    host_bytes = {depth: described.host_bytes(prepared, prefetch=depth) for depth in prefetches}
    if target.platform != "cpu" and (more := described.host_bytes_beside_accelerator(prepared)):
        host_bytes = {depth: parts | {"encoding threads": more} for depth, parts in host_bytes.items()}
    return Problem(
        chip=target.name,
        platform=target.platform,
        devices=target.devices,
        hosts=target.hosts,
        effective_batch=described.effective_batch,
        rate_per_example=described.rate_per_example,
        rate_unit=described.rate_unit,
        supported=described.supported_levers,
        loss_chunks=described.loss_chunks,
        loss_whole=described.loss_whole,
        attention_chunks=described.attention_chunks,
        layerwise=described.layerwise_passes,
        host_bytes=host_bytes,
        data_advice=described.data_advice(),
        available_bytes=host.available_bytes(),
        **requested,
    )
