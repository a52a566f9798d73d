"""The rungs of a recipe's ladder: from nothing done about memory to every lever pulled, one lever more on each.

What a lever does on a ladder stands in its record (`levers/records/`). Exact levers come first, so that the losses
above the first mixed rung can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.levers import lever as record
from plimsoll.levers import registry
from plimsoll.levers.lever import CLASSES, LeftOut, Lever, Problem
from plimsoll.recipes.parts import Model, OwnRung
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import name_of
from plimsoll.types import Numerics

Levers = Mapping[str, Any]

FIRST = "plain"


@dataclass(frozen=True)
class Rung:
    """A value for every lever, and which of them is new."""

    name: str
    lever: str
    """Empty for the first."""
    numerics: Numerics
    words: str
    pins: Levers
    recipe: Recipe


def rungs(
    recipe: Recipe, *, chosen: Sequence[str] = (), numerics: str = CLASSES[-1], platform: str = "cpu"
) -> tuple[list[Rung], dict[str, str]]:
    """Returns the rungs of this recipe up to the class `numerics`, and name to reason for those that are left out.

    With `chosen`, the first one and those: the levers between them stay as they were.
    """
    if numerics not in CLASSES:
        raise RecipeError(f"--numerics {numerics} is not one of {', '.join(CLASSES)}")
    levers = {**registry.plain(), "micro_batch": recipe.effective_batch}
    if own := own_rungs(recipe):
        return _own_rungs(own, recipe, levers, chosen, numerics, platform)
    lines = registry.rungs()
    _require_known(chosen, names_of(recipe))
    problem = _problem(recipe, platform, numerics)
    ladder = [Rung(FIRST, "", "exact", "float32, the whole batch at once, saves beside training", levers, recipe)]
    left_out: dict[str, str] = {}
    for lever, rung in lines:
        if chosen and rung.name not in chosen:
            continue
        try:
            value = _value(lever, rung, problem, levers)
        except LeftOut as reason:
            left_out[rung.name] = str(reason)
            continue
        levers = {**levers, lever.name: value}
        ladder.append(Rung(rung.name, lever.name, lever.touches, rung.words.format(value), levers, recipe))
    return ladder, left_out


def own_rungs(recipe: Recipe) -> tuple[OwnRung, ...]:
    """Returns the ladder of the model's own; empty, without a look at the data, if it has none."""
    if type(recipe.model).ladder is Model.ladder:
        return ()
    return recipe.model.ladder(recipe.spec, recipe.length, recipe.optimizer)


def names_of(recipe: Recipe) -> list[str]:
    """Returns the names of a recipe's rungs, in order."""
    own = own_rungs(recipe)
    if own:
        return [rung.name for rung in own]
    return [FIRST, *(rung.name for _, rung in registry.rungs())]


def _own_rungs(
    lines: Sequence[OwnRung], recipe: Recipe, levers: Levers, chosen: Sequence[str], numerics: str, platform: str
) -> tuple[list[Rung], dict[str, str]]:
    """Returns the same of a model with a ladder of its own."""
    _require_known(chosen, names_of(recipe))
    ladder: list[Rung] = []
    left_out: dict[str, str] = {}
    for number, rung in enumerate(lines):
        if number and chosen and rung.name not in chosen:
            continue
        now = {**levers, **rung.levers}
        touched = registry.numerics(now)
        if CLASSES.index(touched) > CLASSES.index(numerics):  # type: ignore[arg-type]
            left_out[rung.name] = f"--numerics {numerics} does not allow it: it is {touched}"
        elif rung.host and platform == "cpu":
            left_out[rung.name] = "on a CPU the host's memory is the device's: nothing would be saved"
        else:
            levers = now
            new = next(iter(rung.levers), "") if number else ""
            ladder.append(Rung(rung.name, new, touched, rung.words, levers, recipe.replace(**rung.fields)))
    return ladder, left_out


def _require_known(chosen: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in chosen if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known) or f": there are {names_in_words(known, all_of_them='docs/levers.md')}"
        raise RecipeError(f"--rungs {unknown[0]} is no rung of this ladder{hint}")


def _problem(recipe: Recipe, platform: Any, numerics: str) -> Problem:
    """Returns what levers have to know of the recipe."""
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


def _value(lever: Lever, rung: record.Rung, problem: Problem, levers: Levers) -> Any:
    """Returns the value of the lever on this rung. Raises LeftOut where it would change nothing."""
    if CLASSES.index(lever.touches) > CLASSES.index(problem.numerics):  # type: ignore[arg-type]
        raise LeftOut(f"--numerics {problem.numerics} does not allow it: it is {lever.touches}")
    if lever.supports and lever.supports[0].name not in problem.supported:
        raise LeftOut(lever.supports[0].no_rung)
    return rung.value(problem, levers) if callable(rung.value) else rung.value
