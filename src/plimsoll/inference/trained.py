"""A run that has a checkpoint: its recipe, its plan and the parameters of one step, after checksums were verified.

Nothing in the run folder is written, renamed or locked: a run can be used while it is being trained."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.engine.program import lowered
from plimsoll.errors import CheckpointError, RunError, as_written
from plimsoll.files.manifest import damage
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.weight_bits import readable
from plimsoll.planned import Plan
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import with_spec
from plimsoll.recipes.saved import from_dict, name_of
from plimsoll.recipes.verbs import lacking, resolved
from plimsoll.report.metrics import read_rows
from plimsoll.training.checkpoints import FROZEN, load_arrays, read_leaves, without_frozen
from plimsoll.training.loop import summed
from plimsoll.training.program import compiled
from plimsoll.training.schedule import best_of
from plimsoll.training.step import evaluated, make_evaluate, make_init
from plimsoll.types import LossSum

PARAMETERS = "['params']"
"""Where a state keeps them, as a checkpoint spells it."""
AVERAGED = "['ema']", FROZEN, "['params']['tables']"
"""The same, where an average is used instead of what is trained."""
PART = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
"""A key, an index or an attribute on such a path."""
Evaluate = Callable[[Any, Any], Mapping[str, LossSum]]
"""From parameters and a batch to sums by name."""


class Trained:
    """A run that has a checkpoint: its recipe, its plan, and the parameters of a step."""

    def __init__(self, run: str, *, step: str) -> None:
        self.folder = RunFolder(run)
        recipe = from_dict(self.folder.read("recipe.json"))
        self.folder.require_sealed()
        with as_written(f"plan.json of {self.folder.path}"):
            self.plan = Plan.from_dict(self.folder.read("plan.json")["plan"])
        self.prepared = Prepared.read(self.folder)
        self.recipe = with_spec(recipe, self.prepared.spec)
        self.run = run
        self.step = whole(self.folder, step, self.recipe.model.uses.best_by)
        self.checkpoint = self.folder.checkpoint(self.step)

    def params(self, *, average: bool = True, given: bool = True) -> Any:
        """Returns the parameters: the average of the weights where one is kept, unless `average` is False.

        Without `given`, frozen weights that the recipe reads from elsewhere are left out.
        """
        task = self.recipe.task(self.plan.compute(jax.default_backend()))
        rule = self.recipe.update_rule(self.prepared.steps, self.plan.storage)
        how: dict[str, Any] = {"frozen_bits": self.plan.frozen_bits, "precision": self.plan.precision}
        init = make_init(task, rule, **how, examples=self.plan.effective_batch)
        like = jax.eval_shape(init, jax.ShapeDtypeStruct((), "uint32"))
        frozen = {}
        if self.recipe.hints.frozen_given:
            like = without_frozen(like)
            if given:
                drawn = jax.jit(lambda seed: init(seed)["params"]["frozen"])(np.uint32(0))
                frozen = {"frozen": self.recipe.open(self.folder.path).load_frozen(drawn)}
        if "ema" not in like or not average:
            loaded = load_arrays(self.checkpoint, {"params": like["params"]}, only=PARAMETERS)
        else:
            others = {name: leaf for name, leaf in like["params"].items() if name != "trainable"}
            loaded = load_arrays(self.checkpoint, {"ema": like["ema"], "params": others}, only=AVERAGED)
        return evaluated(loaded | {"params": loaded["params"] | frozen})

    def readable_params(self, *, average: bool = True) -> Any:
        """Returns the parameters as a loss reads them: what is learned alone where there is nothing else."""
        params = self.params(average=average)
        params |= {"trainable": readable(params["trainable"])}
        return params["trainable"] if params.keys() == {"trainable"} else params

    def means(self, *, average: bool = True, evaluate: Evaluate | None = None) -> dict[str, Any]:
        """Returns the means over the held-out set as the recipe reports them, and how much of it counted.

        Raises:
            RunError: There is no held-out set.
        """
        recipe, counted = self.recipe, 0.0
        if evaluate is None and average:  # the executable that evaluated while the run trained, for one device
            alone = dataclasses.replace(self.plan, devices=1, fsdp=1)
            evaluate = compiled(
                lowered(recipe, alone, steps=self.prepared.steps).evaluate, deterministic=alone.deterministic
            )
        elif evaluate is None:
            evaluate = jax.jit(make_evaluate(recipe.task(self.plan.compute(jax.default_backend()))))

        def evaluate_and_count(params: Any, batch: Mapping[str, Any]) -> Mapping[str, LossSum]:
            nonlocal counted
            sums = evaluate(params, batch)
            counted += float(sums["loss"].weight)
            return sums

        batches = recipe.open(self.folder.path).validation(examples=self.plan.micro_batch)
        sums = summed(iter(batches), evaluate_and_count, self.params(average=average))
        if not sums:
            raise RunError(f"{self.folder.path} has no held-out set to evaluate on: {recipe.data.no_validation}")
        means = {name.removeprefix("validation_"): value for name, value in sums.items()}
        means = recipe.model.uses.reported(means, recipe.spec)
        of_text = recipe.spec.tokens is not None
        if of_text:
            means["perplexity"] = math.exp(min(means["loss"], 700.0))
        unit = "tokens" if of_text else "weight"  # a user's loss may count anything
        return {**means, unit: round(counted)}


def params_without_code(run: str, *, step: str, average: bool) -> Any:
    """Returns the parameters of a run whose functions are not here, in dicts by the names on their paths.

    Raises:
        RunError: Its weights are kept in fewer bits, which only its recipe can read.
    """
    folder = RunFolder(run)
    plan = Plan.from_dict(folder.planned()["plan"])
    if plan.weight_bits != 32 or plan.frozen_bits != 32:
        raise RunError(
            f"{folder.path} keeps its weights in {min(plan.weight_bits, plan.frozen_bits)} bits, and the functions that"
            " read them are not here: call plimsoll.plan(loss, ...).train(init, data, run=...) with the same ones first"
        )
    averaged = average and folder.read("recipe.json")["fields"].get("ema_decay", 0)
    state = dict[str, Any]()
    checkpoint = folder.checkpoint(whole(folder, step))
    for path, leaf in read_leaves(checkpoint, only=AVERAGED if averaged else PARAMETERS):
        names = [quoted or number or attribute for quoted, number, attribute in PART.findall(path)]
        node = state
        for name in names[:-1]:
            node = node.setdefault(name, {})
        node[names[-1]] = leaf
    params = evaluated({"params": {}} | state)
    return params["trainable"] if params.keys() == {"trainable"} else params


def answer(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the run's recipe answers to a command that only some recipes support (`recipes/verbs.py`).

    Args:
        verb: Name in `Uses.verbs`.
        request: `run`, `step`, and the options of the command.

    Raises:
        RecipeError: The run's recipe has no such verb.
    """
    trained = Trained(request["run"], step=request["step"])
    verbs = trained.recipe.model.uses.verbs
    if verb not in verbs:
        raise lacking(verb, trained.folder.path, name_of(trained.recipe))
    return resolved(verbs[verb].answer)(trained, request)


def choose(folder: RunFolder, step: str, best_by: str = "loss") -> int:
    """Returns the step of a checkpoint.

    Args:
        folder: The run's.
        step: A number, `last`, or `best`: the last one if nothing was evaluated.
        best_by: Metric that chooses the best one (`Schedule.best_by`).
    """
    folder.require_saved()
    steps = folder.saved_steps()
    rows = read_rows(folder.metrics, after=Prepared.read(folder).data_since)
    best = best_of(rows, steps, best_by).step
    if step == "last" or (step == "best" and best is None):
        return steps[-1]
    if step == "best":
        assert best is not None
        return best
    if step.isdigit() and int(step) in steps:
        return int(step)
    there = ", ".join(f"{number} (best)" if number == best else str(number) for number in steps)
    raise CheckpointError(
        f"{folder.path} has no checkpoint of step {step!r}; it has {there}. Name one of them, `best` or `last`"
    )


def whole(folder: RunFolder, step: str, best_by: str = "loss") -> int:
    """Returns what `choose` does after verifying its checksums: a flipped bit would load silently."""
    chosen = choose(folder, step, best_by)
    problem = damage(folder.checkpoint(chosen))
    if problem is None:
        return chosen
    others = [f"--step {other}" for other in folder.saved_steps() if other != chosen]
    instead = f"use {' or '.join(others)}, or train" if others else "train"
    raise CheckpointError(
        f"checkpoint {chosen} of {folder.path} is damaged ({problem}): {instead} again, which sets it aside"
    )


def newest_whole(folder: RunFolder) -> tuple[int, list[str]]:
    """Returns the newest step whose checkpoint passes its checksums, and a note about each newer one that does not."""
    folder.require_saved()
    notes = []
    for step in reversed(folder.saved_steps()):
        problem = damage(folder.checkpoint(step))
        if problem is None:
            return step, notes
        notes.append(f"checkpoint {step} is damaged ({problem})")
    raise CheckpointError(f"no checkpoint of {folder.path} is whole: {'; '.join(notes)}. Train again to start anew")
