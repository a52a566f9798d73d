"""Search for the fastest plan that fits, or the smallest plan, from a request, chip, budgets and facts about the data.

Imports no JAX, because plans are compiled in other processes.
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
"""Default time limit of planning in seconds, by platform."""
PATIENCE = 10
"""Time limit of a compile process's answer, as a multiple of the time limit of planning. Later answers fail."""
MOST_SECONDS = 24 * 3600.0
"""Largest time limit of planning in seconds, because timers do not accept arbitrarily large numbers."""
UNMEASURED = Rates(
    flops=dict.fromkeys(get_args(Precision), 1.0),
    copy_bytes=1.0,
    first_touch_bytes=1.0,
    loop_seconds=0.0,
    source="none",
    host_link_bytes=1.0,
)
"""Placeholder for speeds of a chip that is not measured yet. With it, the planner rejects no memory-saving option."""
UNKNOWN_STEPS = 10_000
"""Steps of the learning-rate schedule if the length of training is unknown. The number does not affect memory."""


def find_plan(question: Question, place: Place, data: Prepared | None = None, say: Say = quiet) -> Planned:
    """Returns the fastest plan that fits. Allocates no arrays, unless `question.measure`.

    Args:
        question: The user's planning request.
        place: Place of the plan: chip, devices and budget.
        data: Facts about the data; None to plan without reading it.
        say: Function that is called with progress messages.

    Raises:
        BudgetError: No plan fits. The message has the smallest plan and changes that would help.
        RecipeError: A value that the user set for a memory-saving option is impossible.
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
    """Returns True if a plan may fit despite the BudgetError: none compiled, or the estimated bytes may be too high."""
    if refusal.floor_bytes is None:
        return True
    _, (least, _) = estimates_compared(problem.devices)
    return compiler.doing == "estimating" and least * refusal.floor_bytes <= problem.budget_bytes


def explained(planned: Planned, question: Question, place: Place, compiler: SpokenPool) -> Planned:
    """Adds the range of estimated bytes, checkpoint bytes, and the reason against cuDNN's attention to a plan."""
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
    """Returns the time limit of planning in seconds, by default that of `usual` for the chip's platform.

    Raises:
        RecipeError: The limit is not above 0, or is more than a day.
    """
    within = question.within
    seconds = usual[place.chip.platform] if within is None else parse_seconds(within)
    if not 0 < seconds <= MOST_SECONDS:
        raise RecipeError(
            f"--within must be above 0 and at most 24h, got {within}: planning takes seconds. 10s is often enough"
        )
    return seconds


# The search's problem.


def problem_of(question: Question, place: Place, data: Prepared | None) -> Problem:
    """Returns the input of the search (`Problem`), from the request, the chip and the data.

    Raises:
        RecipeError: A value that the user set for a memory-saving option is impossible. If the chip's speed is unknown,
            every precision is accepted here.
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
    """Returns the method to find the memory of evaluation and initialisation: traces, compiles or a trial process."""
    if place.chip.platform != "cpu":
        return "compile"
    if place.chip.hosts > 1:
        return "compile" if question.is_of_run else "trace"
    return "try" if question.is_of_run or question.measure else "trace"


def _require_possible_pins(problem: Problem, rates: Rates) -> None:
    """Raises RecipeError if the user set a lever (memory-saving option) so that no plan is left to try."""
    micro_batches(problem)
    for lever in LEVERS.values():
        if lever.name in problem.pins:
            lever.tried(problem, rates)


def _bytes_of_data(question: Question, place: Place, data: Prepared | None) -> tuple[dict[int, dict[str, int]], str]:
    """Returns the data's bytes in host memory, by number of prefetched batches and part, and advice to reduce them."""
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


# The compile processes.


@contextmanager
def compilers(question: Question, place: Place, data: Prepared | None, say: Say) -> Generator[SpokenPool]:
    """Yields a pool of compile processes with cached answers, and stops the processes at the end.

    The time limit of an answer is PATIENCE times that of planning, but at least LONGEST_ANSWER seconds.
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
    """Returns the subject, environment variables and Python of the process that compiles plans.

    Args:
        place: Chip, budget and accelerator of the plans.
        subject: Recipe and step to compile. The chip and its compiler are added.
        say: Function that is called with a message if the chip's compiler is not installed.
        measure: Whether plans are also timed.
    """
    chip, card = place.chip, place.card

    # For the CPU of this machine, one process compiles for the CPU devices of all training processes.
    if chip.platform == "cpu":
        variables = environment.for_processes("cpu", devices=chip.devices, one_heap=False)
        return CompileProcess(subject, variables)

    # For a GPU of this machine, the process uses the GPU to compile and time plans.
    if card is not None and chip.platform == "cuda":
        packages = tuple(toolchains.packages(sys.executable))
        subject = dataclasses.replace(subject, chip=chip, card=card, compiler=packages)
        return CompileProcess(subject, cards.compile_environment(chip, card, place.budget_bytes, measure=measure))

    # For a chip that is not in this machine, the process uses the chip's compiler if installed.
    variables = environment.for_processes(chip.platform, one_heap=False)
    python = toolchains.python_for(chip.platform)
    if python is None:
        say(
            f"the compiler for {chip.name} is {toolchains.missing(chip.platform)}. Its bytes are estimated until"
            f" `plimsoll chips --install {chip.platform}` has installed the compiler"
        )
        return CompileProcess(dataclasses.replace(subject, chip=chip), variables)
    packages = tuple(toolchains.packages(python))
    return CompileProcess(dataclasses.replace(subject, chip=chip, compiler=packages), variables, str(python))
