"""Using what was trained: validation metrics, text, a fingerprint. Part of the joint, in a process that imports JAX.

The parameters of one checkpoint are read after its checksums have been verified, and nothing else of the state.
Nothing in the run folder is written, renamed or locked: a run can be used while it is being trained.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from plimsoll.engine.program import lowered
from plimsoll.errors import RecipeError, RunError
from plimsoll.inference.trained import Trained, newest_whole
from plimsoll.recipes.puzzles.arc_votes import poll_for
from plimsoll.recipes.recommend.recipe import Recommend
from plimsoll.recipes.saved import name_of
from plimsoll.runs.folder import RunFolder
from plimsoll.training.checkpoint import fingerprint, loader_position, read_leaves
from plimsoll.training.loop import summed
from plimsoll.training.program import compiled
from plimsoll.training.step import make_evaluate
from plimsoll.types import LossSum


def evaluate(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Validation metrics of a checkpoint, by the run's own executable. `asked`: `run` and `step`. Raises DataError
    where the data is not the run's any more; `note` says what else was noticed of it.

    A run of ARC has `pass@K` and a `submission` besides. `raw` asks for the same of the weights as they were trained,
    of a run whose average of them is what is evaluated.
    """
    trained = Trained(asked["run"], step=asked["step"])
    recipe, plan = trained.recipe, trained.plan
    changed = recipe.data_changed(trained.prepared)
    task = recipe.task(plan.compute(jax.default_backend()))
    alone = dataclasses.replace(plan, devices=1, fsdp=1)  # however many it was trained on
    poll = poll_for(recipe, task)
    if asked.get("submission") and poll is None:
        raise RecipeError(
            f"--submission writes answers to tasks of ARC, and {trained.folder.path} has none: leave it out"
        )
    if asked.get("raw") and not recipe.ema_decay:
        raise RecipeError(
            f"--raw is for runs that keep an average of their weights, and {trained.folder.path} keeps none"
            " (--ema-decay 0): what is evaluated are its weights as they were trained. Leave it out"
        )
    if isinstance(recipe, Recommend):
        from plimsoll.recipes.recommend.rank import judged

        return judged(trained, keep_seen=bool(asked.get("keep_seen")), raw=bool(asked.get("raw")))
    if asked.get("keep_seen"):
        raise RecipeError(
            f"--keep-seen is for runs of recommend, and {trained.folder.path} is one of {name_of(recipe)}: leave it out"
        )
    own = compiled(lowered(recipe, alone, steps=trained.prepared.steps).evaluate) if poll is None else poll.evaluate
    answer = {"run": asked["run"], "step": trained.saved.step, **_evaluated(trained, own, trained.params())}
    if changed is not None:
        answer["note"] = changed
    if poll is not None:
        answer |= poll.result()
    if asked.get("raw"):
        found = _evaluated(trained, jax.jit(make_evaluate(task)), trained.params(average=False))
        answer["raw"] = {name: value for name, value in found.items() if isinstance(value, float)}
    if asked.get("closed_loop"):
        from plimsoll.recipes.control.closed_loop import closed_loop

        answer["closed_loop"] = closed_loop(recipe, task, trained.params())
    return answer


def _evaluated(trained: Trained, own: Callable[[Any, Any], Mapping[str, LossSum]], params: Any) -> dict[str, Any]:
    """Over the held-out set, as the recipe reports it; and how much of it counted."""
    recipe, counted = trained.recipe, 0.0

    def evaluate_and_count(params: Any, batch: Mapping[str, Any]) -> Mapping[str, LossSum]:
        nonlocal counted
        sums = own(params, batch)
        counted += float(sums["loss"].weight)
        return sums

    batches = recipe.validation(trained.folder.path, examples=trained.plan.micro_batch)
    metrics = summed(iter(batches), evaluate_and_count, params)
    if not metrics:
        raise RunError(f"{trained.folder.path} has no held-out set to evaluate on: {recipe.without_validation}")
    found = recipe.reported({name.removeprefix("validation_"): value for name, value in metrics.items()})
    if recipe.rate_unit == "tokens":
        found["perplexity"] = math.exp(min(found["loss"], 700.0))
    unit = "tokens" if recipe.rate_unit == "tokens" else "weight"  # a user's loss may count anything
    return {**found, unit: round(counted)}


def prove(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of the newest whole checkpoint. `asked`: `run`."""
    folder = RunFolder(asked["run"])
    folder.read("recipe.json")  # says it where this is no run
    saved, notes = newest_whole(folder)
    digest = fingerprint(read_leaves(saved), loader_position(saved))
    return {"run": asked["run"], "step": saved.step, "fingerprint": digest, "notes": notes}
