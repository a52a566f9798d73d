"""Finds the fastest plan for a recipe whose predicted peak fits a memory budget: `plimsoll.plan`.

It does not import JAX: compiling happens in a child."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, get_args

from plimsoll.api import accelerator, notebook
from plimsoll.api import largest as largest_option
from plimsoll.api.accelerator import Card
from plimsoll.api.keywords import read_request
from plimsoll.api.mesh import over_devices
from plimsoll.api.option_values import steps_of
from plimsoll.api.pins import require_levers, require_supported
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.records.batch import PREFETCH
from plimsoll.levers.records.blocks import without_cudnn
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Planned
from plimsoll.planner import chips, host
from plimsoll.planner.child import LONGEST_ANSWER, Child, Pool
from plimsoll.planner.chips import Chip
from plimsoll.planner.estimate import estimate_band, estimates_compared
from plimsoll.planner.search import search
from plimsoll.planner.space import micro_batches
from plimsoll.planner.types import Problem, Rates
from plimsoll.processes import environment, toolchains
from plimsoll.processes.cache import cache_folder, limit_bytes, prune
from plimsoll.recipes.flat import absent_data
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.saved import name_of, to_dict
from plimsoll.training import disk
from plimsoll.types import Precision
from plimsoll.units import as_read, format_bytes, parse_budget, parse_seconds

Say = Callable[[str], None]

WITHIN = {"cpu": 30.0, "cuda": 60.0, "tpu": 60.0}
"""Seconds that planning may take, by platform."""
PATIENCE = 10
"""Times what planning may take that a single answer may: then it counts as failed, and the next candidate is asked."""
MOST_SECONDS = 24 * 3600.0
"""Seconds that planning may be given at most: clocks and timers take no number of any size."""
UNMEASURED = Rates(
    flops=dict.fromkeys(get_args(Precision), 1.0),
    copy_bytes=1.0,
    first_touch_bytes=1.0,
    loop_seconds=0.0,
    source="none",
    host_link_bytes=1.0,
)
"""Rates of a chip before they are measured, by which no lever is refused."""
UNKNOWN_STEPS = 10_000
"""Length of the schedule where nobody has said or counted it: changes no byte."""


def printing(*, quiet: bool) -> Say:
    """Returns the function that prints messages at once, also into a file; nothing if `quiet`."""
    return (lambda text: None) if quiet else (lambda text: print(text, flush=True))


def plan(
    recipe: Recipe | Pinned | str,
    *,
    name: str | None = None,
    memory: str | float | None = None,
    host_memory: str | float | None = None,
    chip: str | None = None,
    card: Card | None = None,
    mesh: str | None = None,
    processes: int = 1,
    numerics: str = "mixed",
    pins: Mapping[str, Any] | None = None,
    measure: bool = False,
    pinned_by: str | None = None,
    prepared: Prepared | None = None,
    margin_bytes: int = 0,
    within: str | float | None = None,
    smallest: bool = False,
    largest: str | None = None,
    say: Say = lambda text: None,
) -> Planned:
    """Returns the fastest plan for `recipe` whose predicted peak fits `memory`; allocates nothing unless `measure`.

    With `smallest` it is the plan that needs least, whatever `memory` is. With `largest`, the name of an option like
    "seq_len", it is the plan of the largest value that fits, which stands in `largest_found` (api/largest.py).

    `chip` is one of `plimsoll chips`; without it the accelerator that is here, else the CPU. A `card` of that kind that
    is in this machine compiles the plans itself, and times them if `measure`; one that nobody passed is looked for.
    `mesh` says how many devices share the work and the state, like "data=4,fsdp=2"; without it all that are there do.
    `processes` of a CPU have as many each. `memory` is per device; `host_memory` is each host's beside its
    accelerators. `prepared` says what is known of the data; without it nothing of the data is read. `pinned_by` is
    where `pins` come from, if nobody typed them. `measure` times the best few, on the chip at hand only.
    `margin_bytes` stay free, beyond the prediction, in the phases that a plan decides about: what a run that went over
    its budget has learned. `within` are the seconds that planning may take: after them the best plan that is confirmed
    is taken, or the first one that is; by default as many as `WITHIN` has.
    Raises BudgetError, with the smallest peak found and what would fit, if nothing does; and RecipeError where driver
    and plug-in of an accelerator are here, and JAX cannot use it.
    """
    request = read_request(recipe, verb="plan", name=name, pins=pins)
    recipe, name = request.recipe, request.name
    given = pins = request.pins
    require_levers({name: value for name, value in pins.items() if value is not None})  # before any counts with one
    _require_one_question(smallest=smallest, largest=largest, measure=measure)
    if chip is None:
        found = accelerator.chip_here(say, batch=pins.get("micro_batch") or recipe.effective_batch, mesh=mesh)
    else:
        found = accelerator.chip_named(chip)
    target, pins = over_devices(found, recipe, pins, mesh, processes=processes)
    card = card or (accelerator.card_here(target) if processes == 1 else None)
    _require_plannable(target, card, measure=measure)
    seconds = _seconds_for(target, within, largest=largest is not None)
    budget = budget_bytes(memory, target, card, say)
    if measure:
        accelerator.require_free(card, target, budget)
    cache = cache_folder()
    cache_limit = limit_bytes()
    question = {
        "recipe": name,
        "budget_bytes": budget,
        "host_budget_bytes": _host_budget(host_memory, target, say),
        "numerics": numerics,
        "pins": pins,
        "pinned_by": pinned_by,
        "measure": measure,
        "steps": (prepared or recipe.length).steps if measure else None,
        "margin_bytes": margin_bytes,
    }
    if largest is not None:
        again = {"name": name, "memory": budget, "host_memory": host_memory, "mesh": mesh, "processes": processes}
        again |= {"chip": "cpu" if target.platform == "cpu" else chip, "card": card, "numerics": numerics}
        again |= {"prepared": prepared, "margin_bytes": margin_bytes, "say": say}
        return largest_option.find_largest(
            recipe,
            steps_of(recipe, largest, devices=target.devices),
            partial(plan, **again),
            pins=given,
            budget_bytes=budget,
            within=seconds,
            say=say,
        )
    problem = _possible_problem(recipe, target, **question)
    held, advice = _host_memory(recipe, target, prepared, pins)
    problem = dataclasses.replace(problem, host_bytes=held, data_advice=advice)
    if prepared is None:
        for flag, problem_of_data in absent_data(recipe).items():
            say(f"{flag}: {problem_of_data} This plan needs none, and training will refuse it")
    about = {"recipe": to_dict(recipe), "steps": (prepared or recipe.length).steps or UNKNOWN_STEPS}
    command = _compile_process(target, card, budget, about, say, measure=measure)
    with ExitStack() as stack:
        prune(cache, cache_limit)  # a step that a full disk cut short would be compiled, and measured, in the rehearsal
        stack.callback(prune, cache, cache_limit)  # after a refusal, too
        number = 1 if card is not None else host.compilers()
        compiler = stack.enter_context(_compilers(number, command, about, cache, seconds))
        planned = _searched(problem, compiler, say, within=seconds, smallest=smallest, patient=within is None)
        further: dict[str, Any] = {
            "margin_bytes": margin_bytes,
            "estimate_band": estimate_band(planned.ledger, devices=planned.devices),
            "disk": disk.needed(compiler.static().state_bytes - compiler.static().given_bytes),
        }
    head_width = recipe.hints.head_width
    if target.platform == "cuda" and head_width is not None:
        chosen = planned.plan
        further["without_cudnn"] = without_cudnn(
            precision=chosen.precision, chunk=chosen.attention_chunk, width=head_width
        )
    return notebook.ShownPlan(**vars(planned) | further)


def _require_one_question(*, smallest: bool, largest: str | None, measure: bool) -> None:
    """Raises RecipeError where two things are looked for at once."""
    if largest is not None and (smallest or measure):
        raise RecipeError(
            f"--largest {largest} looks for a value by its smallest plan, and times none: leave out --floor and"
            " --measure"
        )


def _require_plannable(target: Chip, card: Card | None, *, measure: bool) -> None:
    """Raises RecipeError where plans cannot be timed though they are to be, or the chip's rates are not known."""
    if measure and target.platform != "cpu" and card is None:
        raise RecipeError(f"--measure times plans on the chip at hand, and {target.name} is not: leave it out")
    if card is None and target.platform != "cpu" and not target.flops:
        raise RecipeError(
            f"{target.name} is in no list of chips, and JAX cannot use as many of them here: its rates are not known."
            " Add it to a chip file (docs/chips.md)"
        )


def _seconds_for(target: Chip, within: str | float | None, *, largest: bool) -> float:
    """Returns the seconds that planning may take."""
    usual = largest_option.WITHIN if largest else WITHIN
    seconds = usual[target.platform] if within is None else parse_seconds(within)
    if not 0 < seconds <= MOST_SECONDS:
        raise RecipeError(
            f"--within must be above 0 and at most 24h, got {within}: planning takes seconds. 10s is often enough"
        )
    return seconds


def _compilers(
    number: int, command: tuple[list[str], dict[str, str]], about: Mapping[str, Any], cache: Path, seconds: float
) -> Pool:
    """Returns compile processes whose answers are kept, each of which may take PATIENCE times what planning may."""
    longest = max(LONGEST_ANSWER, PATIENCE * seconds)
    return Pool([Child(*command, about=about, answers=cache / "answers", longest=longest) for _ in range(number)])


def _searched(problem: Problem, compiler: Pool, say: Say, *, within: float, smallest: bool, patient: bool) -> Planned:
    """Returns what the search finds. A refusal whose bytes are estimated may be wrong, and is `uncertain` then."""
    try:
        return search(problem, compiler, say, within=within, smallest=smallest, patient=patient, clock=compiler.clock)
    except BudgetError as refusal:
        estimated, floor = compiler.doing == "estimating", refusal.floor_bytes
        _, (least, _) = estimates_compared(problem.devices)
        if floor is None or (estimated and least * floor <= problem.budget_bytes):
            refusal.verdict = "uncertain"
        raise


def _compile_process(
    target: Chip, card: Card | None, budget: int, about: dict[str, Any], say: Say, *, measure: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of the child for this chip; `about` gets what its answers depend on."""
    if card is not None and target.platform == "cuda":
        about |= {"chip": dataclasses.asdict(target), "compiled": True, "card": dataclasses.asdict(card)}
        about |= {"compiler": toolchains.packages(sys.executable)}
        command = [sys.executable, "-m", "plimsoll.worker", "card-compile", json.dumps(about)]
        return command, accelerator.compile_environment(target, card, budget, measure=measure)
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
        about |= {} if python is None else {"compiler": toolchains.packages(python)}
        command = [str(python or sys.executable), "-m", "plimsoll.worker", "cross-compile"]
    devices = target.devices if target.platform == "cpu" else None  # of all processes: one child compiles for them
    return [*command, json.dumps(about)], environment.for_processes(target.platform, devices=devices, one_heap=False)


def budget_bytes(
    memory: str | float | None, target: Chip | None = None, card: Card | None = None, say: Say = lambda text: None
) -> int:
    """Returns the budget of one device: `memory`, else what is available here less a margin, or what the chip has.

    Args:
        memory: Budget that was requested.
        target: Chip that is planned for; this machine if left out.
        card: That chip, where it is in this machine: by default no more than what is free of it.
        say: Called with who holds the rest, if that is a tenth of it or more.

    Raises:
        RecipeError: `memory` cannot be read, or is more than the chip has.
    """
    chip = None if target is None or target.platform == "cpu" else target
    on_card = card if chip is not None and chip.platform == "cuda" else None
    most = None if chip is None else chip.memory_bytes
    if on_card is not None and most is not None:
        most = min(most, on_card.memory_bytes)

    # What was requested.
    if memory is not None:
        budget = parse_budget(memory)
        if read := as_read(memory):
            say(f"--memory {read}")
        if chip is not None and most is not None and budget > most:
            raise RecipeError(
                f"--memory {memory} is {format_bytes(budget)} per device, and a device of {chip.name} has"
                f" {format_bytes(most)} that a run can use: ask for at most that"
            )
        return budget

    # What is there.
    if chip is None or most is None:
        available = host.available_bytes()
        return available - host.margin_bytes(available)
    if on_card is None:
        return most
    free = accelerator.free_bytes(on_card, chip)
    if free < 0.9 * most:
        who = accelerator.held(on_card, chip) or "processes that the driver does not name"
        say(f"{format_bytes(free)} of the {on_card.kind} can be used now: {who} hold the rest")
    return min(most, free)


def _host_budget(host_memory: str | float | None, target: Chip, say: Say) -> int | None:
    if target.platform == "cpu":
        if host_memory is not None:
            raise RecipeError(
                "--host-memory is for the host beside an accelerator, and cpu is the host: --memory counts all of it"
            )
        return None
    if host_memory is None:
        return target.host_memory_bytes
    budget = parse_budget(host_memory, option="--host-memory")
    if read := as_read(host_memory):
        say(f"--host-memory {read}")
    return budget


def refuse_impossible(
    recipe: Recipe, options: TrainOptions, target: Chip, card: Card | None, pins: Mapping[str, Any]
) -> None:
    """Raises PlimsollError for options that no data makes possible: before data is opened, or the network asked.

    Args:
        recipe: The recipe.
        options: Options of training. What `memory` is read as, planning says.
        target: Chip to train on, with the devices that are used.
        card: The accelerator of this machine that is trained on.
        pins: Levers that are pinned.
    """
    _seconds_for(target, options.within, largest=False)
    budget = budget_bytes(options.memory, target, card)
    accelerator.require_free(card, target, budget)
    requested = {"numerics": options.numerics, "pins": pins, "recipe": options.name or name_of(recipe)}
    _possible_problem(recipe, target, budget_bytes=budget, **requested)


def _host_memory(
    recipe: Recipe, target: Chip, prepared: Prepared | None, pins: Mapping[str, Any]
) -> tuple[dict[int, dict[str, int]], str]:
    """Returns the host's bytes of the data by component, for each depth of prefetching, and what would need less."""
    by_depth: dict[int, dict[str, int]] = {}
    advice = ""
    for depth in [pins["prefetch"]] if "prefetch" in pins else PREFETCH:
        memory = recipe.data.memory(prepared, recipe.reading, prefetch=depth)
        by_depth[depth] = {"data": memory.bytes}
        if target.platform != "cpu" and memory.beside_accelerator:
            by_depth[depth]["encoding threads"] = memory.beside_accelerator
        advice = memory.advice
    return by_depth, advice


def _possible_problem(described: Recipe, target: Chip, **requested: Any) -> Problem:
    """Returns what the search has to know, but for the bytes of the data: what the user, the recipe and the chip say.

    Raises:
        RecipeError: A pinned lever is impossible. A precision of a chip whose rates are still to be measured is not
            refused here.
    """
    pins = requested["pins"]
    if requested["numerics"] not in CLASSES:
        raise RecipeError(f"--numerics {requested['numerics']} is not one of {', '.join(CLASSES)}")
    require_supported(described, pins)
    problem = _problem(described, target, **requested)
    micro_batches(problem)
    rates = chips.rates(target) if target.flops else UNMEASURED
    for lever in LEVERS.values():
        if lever.name in pins:
            lever.tried(problem, rates)
    return problem


def _problem(described: Recipe, target: Chip, **requested: Any) -> Problem:
    """Returns the problem without the bytes of the data."""
    hints, spec = described.hints, described.spec
    return Problem(
        chip=target.name,
        platform=target.platform,
        devices=target.devices,
        hosts=target.hosts,
        effective_batch=described.effective_batch,
        normalised_together=hints.normalised_together,
        rate_per_example=spec.rate_per_example,
        rate_unit=spec.rate_unit,
        supported=hints.levers,
        loss_chunks=hints.loss_chunks,
        loss_rows=hints.loss_rows,
        loss_whole=hints.loss_whole,
        attention_chunks=hints.attention_chunks,
        mlp_chunks=hints.mlp_chunks,
        layerwise=hints.layerwise,
        host_bytes={},
        data_advice="",
        **requested,
    )
