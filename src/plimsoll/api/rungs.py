"""Rungs of a recipe's ladder: plans from one without memory savings to one with all levers. Each rung adds a lever.

Each lever (memory-saving option) describes its own rungs (`levers/records/`). Levers that keep results exact come
first, so that the losses of their rungs can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.levers import registry
from plimsoll.levers.lever import CLASSES, LeftOut, Problem
from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.parts import Model, OwnRung
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import name_of
from plimsoll.types import Numerics

FIRST = OwnRung("plain", "float32, the whole batch at once, saves beside training", {}, {})


@dataclass(frozen=True)
class Rung:
    """Rung of a ladder: values of all levers (memory-saving options), of which one is new on this rung."""

    name: str
    lever: str
    """Name of the memory-saving option that this plan adds to the ladder; empty for the first plan."""
    numerics: Numerics
    words: str
    """Description of the plan in the table of `plimsoll ladder`."""
    pins: Mapping[str, Any]
    """Values of all memory-saving options, by name."""
    recipe: Recipe
    """Recipe to plan. Some of its options may differ from the user's recipe."""


def rungs(
    recipe: Recipe, *, chosen: Sequence[str] = (), numerics: str = CLASSES[-1], platform: str = "cpu"
) -> tuple[list[Rung], dict[str, str]]:
    """Returns the plans ("rungs") of a recipe's ladder, and the reasons for omitted ones, by name.

    `numerics` limits how far rungs may change the arithmetic. If `chosen` has names of rungs, returns only the first
    rung and these; memory-saving options of other rungs stay off.
    """
    if numerics not in CLASSES:
        raise RecipeError(f"--numerics {numerics} is not one of {', '.join(CLASSES)}")
    steps = steps_of(recipe)
    _require_known(chosen, [step.name for step in steps])
    levers = {**registry.plain(), "micro_batch": recipe.effective_batch}
    ladder: list[Rung] = []
    left_out: dict[str, str] = {}
    for number, step in enumerate(steps):
        if number and chosen and step.name not in chosen:
            continue
        on_rung = recipe.replace(**step.fields) if step.fields else recipe
        try:
            new = new_levers(step, _problem(on_rung, platform, numerics), levers)
        except LeftOut as reason:
            left_out[step.name] = str(reason)
            continue
        levers = {**levers, **new}
        lever = next(iter(new), "") if number else ""
        words = step.words.format(*new.values())
        ladder.append(Rung(step.name, lever, registry.numerics(levers), words, levers, on_rung))
    return ladder, left_out


def _require_known(chosen: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in chosen if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known) or f": there are {names_in_words(known, all_of_them='docs/levers.md')}"
        raise RecipeError(f"--rungs {unknown[0]} is no rung of this ladder{hint}")


def steps_of(recipe: Recipe) -> Sequence[OwnRung]:
    """Returns descriptions of the rungs in order: those of the model, or else those of all memory-saving options."""
    if type(recipe.model).ladder is not Model.ladder:
        own = recipe.model.ladder(recipe.spec, recipe.length, recipe.optimizer)
        if own:
            return own
    return [FIRST, *(OwnRung(rung.name, rung.words, {lever.name: rung.value}, {}) for lever, rung in registry.rungs())]


def names_of(recipe: Recipe) -> list[str]:
    """Returns the names of the rungs (plans) in a recipe's ladder, in order."""
    return [step.name for step in steps_of(recipe)]


def new_levers(step: OwnRung, problem: Problem, levers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the levers (memory-saving options) that one plan of a ladder changes, with their new values.

    Raises:
        LeftOut: The recipe does not support the rung, `problem.numerics` forbids it, or it would have no effect.
    """
    new: dict[str, Any] = {}
    for name, value in step.levers.items():
        lever = LEVERS[name]
        if value != lever.plain and lever.supports and lever.supports[0].name not in problem.supported:
            raise LeftOut(lever.supports[0].no_rung)
        new[name] = value(problem, levers) if callable(value) else value
    touched = registry.numerics({**levers, **new})
    if CLASSES.index(touched) > CLASSES.index(problem.numerics):  # type: ignore[arg-type]
        raise LeftOut(f"--numerics {problem.numerics} does not allow it: it is {touched}")
    if step.host and problem.platform == "cpu":
        raise LeftOut("on a CPU the host's memory is the device's: nothing would be saved")
    return new


def _problem(recipe: Recipe, platform: Any, numerics: str) -> Problem:
    """Returns the planner's input for a recipe, with only the fields on which memory-saving options depend."""
    hints = recipe.hints
    return Problem(
        recipe=name_of(recipe),
        chip=platform,
        platform=platform,
        effective_batch=recipe.effective_batch,
        normalised_together=hints.normalised_together,
        numerics=numerics,
        supported=hints.levers,
        loss_chunks=hints.loss_chunks,
        loss_rows=hints.loss_rows,
        attention_chunks=hints.attention_chunks,
        mlp_chunks=hints.mlp_chunks,
        layerwise=hints.layerwise,
    )
