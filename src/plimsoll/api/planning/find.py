"""The fastest plan that fits, and the smallest: a question, a place and the data, put to the compile child.

Nothing here imports JAX: compiling happens in a child.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import get_args

from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning import card as cards
from plimsoll.api.planning.option_values import options_with_values
from plimsoll.api.planning.pins import require_supported
from plimsoll.api.planning.place import Place
from plimsoll.api.planning.progress import SpokenPool
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.records.batch import PREFETCH
from plimsoll.levers.records.blocks import without_cudnn
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Planned
from plimsoll.planner import chips, host, search
from plimsoll.planner.child import LONGEST_ANSWER, Child, CompileProcess
from plimsoll.planner.deadline import Deadline
from plimsoll.planner.estimated import estimate_band, estimates_compared
from plimsoll.planner.search import Desk
from plimsoll.planner.space import micro_batches
from plimsoll.planner.types import Depth, Problem, Rates, Subject
from plimsoll.processes import environment, toolchains
from plimsoll.processes.cache import cache_folder, limit_bytes, prune
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.saved import is_from_file, to_dict
from plimsoll.training import disk
from plimsoll.types import Precision
from plimsoll.units import parse_seconds

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


def find_plan(question: Question, place: Place, data: Prepared | None = None, say: Say = quiet) -> Planned:
    """Returns the fastest plan that fits. Allocates nothing, unless `question.measure`.

    Args:
        question: What the user wants a plan for.
        place: Where it runs.
        data: What is known of the data; without it nothing of the data is read.
        say: Called with what is being done.

    Raises:
        BudgetError: Nothing fits; with the smallest peak that was found, and what would fit.
        RecipeError: A pinned lever is impossible.
    """
    return _find(question, place, data, say, smallest=False)


def find_smallest(question: Question, place: Place, data: Prepared | None = None, say: Say = quiet) -> Planned:
    """Returns the plan that needs the fewest bytes, whether it fits or not. Raises BudgetError if nothing compiles."""
    return _find(question, place, data, say, smallest=True)


def _find(question: Question, place: Place, data: Prepared | None, say: Say, *, smallest: bool) -> Planned:
    problem = problem_of(question, place, data)
    seconds = seconds_for(question, place)
    with compilers(question, place, data, say) as compiler:
        deadline = Deadline(seconds, compiler.clock, is_patient=question.within is None)
        try:
            find = search.find_smallest if smallest else search.find_fastest
            planned = find(problem, Desk(compiler, compiler.say, deadline))
        except BudgetError as refusal:
            refusal.verdict = "uncertain" if _may_be_wrong(refusal, problem, compiler) else refusal.verdict
            raise
        planned = explained(planned, question, place, compiler)
    could_grow = () if smallest else options_with_values(question.recipe)
    return dataclasses.replace(planned, could_grow=could_grow)


def _may_be_wrong(refusal: BudgetError, problem: Problem, compiler: SpokenPool) -> bool:
    """Returns whether a compiler might still find a plan that fits: where bytes are estimated, or nothing compiles."""
    if refusal.floor_bytes is None:
        return True
    _, (least, _) = estimates_compared(problem.devices)
    return compiler.doing == "estimating" and least * refusal.floor_bytes <= problem.budget_bytes


def explained(planned: Planned, question: Question, place: Place, compiler: SpokenPool) -> Planned:
    """Returns the plan with what follows from it: its range where it is estimated, its checkpoints, its attention."""
    static = compiler.static()
    head_width = question.recipe.hints.head_width
    why_not_cudnn = ""
    if place.chip.platform == "cuda" and head_width is not None:
        plan = planned.plan
        why_not_cudnn = without_cudnn(precision=plan.precision, chunk=plan.lever("attention_chunk"), width=head_width)
    return dataclasses.replace(
        planned,
        margin_bytes=place.reserve_bytes,
        estimate_band=estimate_band(planned.ledger, devices=planned.devices),
        disk=disk.needed(static.state_bytes - static.given_bytes),
        without_cudnn=why_not_cudnn,
        step_options=question.step_options,
    )


def seconds_for(question: Question, place: Place, usual: Mapping[str, float] = WITHIN) -> float:
    """Returns the seconds that planning may take. Raises RecipeError for a time that no planning can have."""
    within = question.within
    seconds = usual[place.chip.platform] if within is None else parse_seconds(within)
    if not 0 < seconds <= MOST_SECONDS:
        raise RecipeError(
            f"--within must be above 0 and at most 24h, got {within}: planning takes seconds. 10s is often enough"
        )
    return seconds


# What the search has to know.


def problem_of(question: Question, place: Place, data: Prepared | None) -> Problem:
    """Returns the problem for the search: facts of the user, the recipe, the chip and the data.

    Raises:
        RecipeError: A pinned lever is impossible, or no plan could have it. A precision of a chip whose rates are still
            to be measured is not refused here.
    """
    recipe, chip = question.recipe, place.chip
    pins = dict(question.pins)
    if place.mesh is not None:
        pins["fsdp"] = place.mesh.fsdp
    if question.numerics not in CLASSES:
        raise RecipeError(f"--numerics {question.numerics} is not one of {', '.join(CLASSES)}")
    require_supported(recipe, pins)

    hints, spec = recipe.hints, recipe.spec
    host_bytes, data_advice = _bytes_of_data(question, place, data)
    problem = Problem(
        recipe=question.name,
        chip=chip.name,
        platform=chip.platform,
        devices=chip.devices,
        hosts=chip.hosts,
        budget_bytes=place.budget_bytes,
        memory_bytes=None if chip.platform == "cpu" else chip.memory_bytes,
        host_budget_bytes=place.host_budget_bytes,
        margin_bytes=place.reserve_bytes,
        numerics=question.numerics,
        pins=pins,
        pinned_by=question.pinned_by,
        measure=question.measure,
        prepares=depth_of(question, place),
        steps=(data or recipe.length).steps if question.measure or question.is_of_run else None,
        effective_batch=recipe.effective_batch,
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
        host_bytes=host_bytes,
        data_advice=data_advice,
    )
    _require_possible_pins(problem, chips.rates(chip) if chip.flops else UNMEASURED)
    return problem


def depth_of(question: Question, place: Place) -> Depth:
    """Returns how well it is to be known what a run takes besides its step."""
    if place.chip.platform != "cpu":
        return "compile"
    if place.chip.hosts > 1:
        return "compile" if question.is_of_run else "trace"
    return "try" if question.is_of_run or question.measure else "trace"


def _require_possible_pins(problem: Problem, rates: Rates) -> None:
    """Raises RecipeError where a pinned lever leaves no plan to try."""
    micro_batches(problem)
    for lever in LEVERS.values():
        if lever.name in problem.pins:
            lever.tried(problem, rates)


def _bytes_of_data(question: Question, place: Place, data: Prepared | None) -> tuple[dict[int, dict[str, int]], str]:
    """Returns the host's bytes of the data by component, for each depth of prefetching, and what would need less."""
    recipe = question.recipe
    by_depth: dict[int, dict[str, int]] = {}
    advice = ""
    for depth in [question.pins["prefetch"]] if "prefetch" in question.pins else PREFETCH:
        memory = recipe.data.memory(data, recipe.reading, prefetch=depth)
        by_depth[depth] = {"data": memory.bytes}
        if place.chip.platform != "cpu" and memory.beside_accelerator:
            by_depth[depth]["encoding threads"] = memory.beside_accelerator
        advice = memory.advice
    return by_depth, advice


# Who answers.


@contextmanager
def compilers(question: Question, place: Place, data: Prepared | None, say: Say) -> Generator[SpokenPool]:
    """Gives compile processes whose answers are kept.

    An answer may take PATIENCE times what planning may, and LONGEST_ANSWER in any case.
    """
    cache, limit = cache_folder(), limit_bytes()
    recipe = to_dict(question.recipe)
    subject = Subject(
        recipe=recipe,
        is_own=is_from_file(recipe),
        imports=question.recipe.data.imports(),
        steps=(data or question.recipe.length).steps or UNKNOWN_STEPS,
        step_options=question.step_options,
        devices=place.chip.devices,
    )
    process = compile_process(place, subject, say, measure=question.measure)
    longest = max(LONGEST_ANSWER, PATIENCE * seconds_for(question, place))
    count = 1 if place.card is not None else host.compilers()
    children = [Child(process, answers=cache / "answers", longest=longest) for _ in range(count)]
    try:
        with SpokenPool(children, say) as pool:
            yield pool
    finally:
        prune(cache, limit)


def compile_process(place: Place, subject: Subject, say: Say, *, measure: bool = False) -> CompileProcess:
    """Returns the process that compiles for this chip.

    Args:
        place: The chip.
        subject: Recipe and step that are compiled; the chip and its compiler are added.
        say: Called where the chip's compiler is not installed.
        measure: Whether plans are timed, too.
    """
    chip, card = place.chip, place.card

    # This CPU, as the devices of all processes: one process compiles for them.
    if chip.platform == "cpu":
        variables = environment.for_processes("cpu", devices=chip.devices, one_heap=False)
        return CompileProcess(subject, variables)

    # The card that is here compiles for itself.
    if card is not None and chip.platform == "cuda":
        packages = tuple(toolchains.packages(sys.executable))
        subject = dataclasses.replace(subject, chip=chip, card=card, compiler=packages)
        return CompileProcess(subject, cards.compile_environment(chip, card, place.budget_bytes, measure=measure))

    # A chip that is not here: its compiler, or none.
    variables = environment.for_processes(chip.platform, one_heap=False)
    python = toolchains.python_for(chip.platform)
    if python is None:
        say(
            f"the compiler for {chip.name} is {toolchains.missing(chip.platform)}. Its bytes are estimated until"
            f" `plimsoll chips --install {chip.platform}` has made it"
        )
        return CompileProcess(dataclasses.replace(subject, chip=chip), variables)
    packages = tuple(toolchains.packages(python))
    return CompileProcess(dataclasses.replace(subject, chip=chip, compiler=packages), variables, str(python))
