"""A run with a checkpoint: its recipe, its plan, and the parameters at one step, with checksums verified.

Nothing in the run folder is written, renamed or locked: a run can be used while it is being trained."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np

from plimsoll.engine.program import functions_here
from plimsoll.errors import CheckpointError, RunError
from plimsoll.files.manifest import damage
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Opened, with_spec
from plimsoll.recipes.saved import from_dict
from plimsoll.recipes.verbs import resolved
from plimsoll.report.metrics import read_rows
from plimsoll.training.checkpoints import FROZEN, load_arrays, read_leaves, without_frozen
from plimsoll.training.program import compiled
from plimsoll.training.reports import summed
from plimsoll.training.schedule import best_of
from plimsoll.training.step import evaluated, make_evaluate, make_init
from plimsoll.types import LossSum

PARAMETERS = "['params']"
"""Path of the parameters in the training state of a checkpoint."""
AVERAGED = "['ema']", FROZEN, "['params']['tables']"
"""Paths to read if the average (EMA) of the weights is used; frozen weights and tables have none."""
PART = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")
"""Pattern of a key, an index or an attribute in a path like PARAMETERS."""
Evaluate = Callable[[Any, Any], Mapping[str, LossSum]]
"""Function from parameters and a batch to each metric's sum and weight, by its name."""


class Trained:
    """A run with a checkpoint: its recipe, its plan, and the parameters at one step."""

    def __init__(self, run: str, *, step: str) -> None:
        self.folder = RunFolder(run)
        recipe = from_dict(self.folder.read("recipe.json"))
        self.folder.require_sealed()
        planned = self.folder.planned()
        self.plan = planned.plan
        self.options = planned.step_options
        self.prepared = Prepared.read(self.folder)
        self.recipe = with_spec(recipe, self.prepared.spec)
        self.run = run
        self.path = self.folder.path
        self.step = whole(self.folder, step, self.recipe.model.uses.best_by)
        self.checkpoint = self.folder.checkpoint(self.step)

    @cached_property
    def task(self) -> Any:
        """Model and loss, with the precision that the plan chose."""
        return self.recipe.task(self.plan.compute(jax.default_backend()))

    @cached_property
    def data(self) -> Opened:
        """Opened data and weights of the run. Raises DataError if they have changed since the run began."""
        data = self.recipe.open(self.path)
        data.require_same(self.prepared, training=False)
        return data

    def stored(self, *, average: bool = True, given: bool = True) -> Any:
        """Returns the parameters as the run stores them, in 32 to 4 bits per weight.

        Args:
            average: True for the average (EMA) of the weights, if the run has one.
            given: True to load the frozen weights that checkpoints leave out, too.
        """
        rule = self.recipe.update_rule(self.prepared.steps, self.plan.storage)
        init = make_init(
            self.task, rule, frozen_bits=self.plan.lever("frozen_bits"), examples=self.plan.effective_batch
        )
        like = jax.eval_shape(init, jax.ShapeDtypeStruct((), "uint32"))

        # Load the frozen weights that checkpoints leave out.
        frozen = {}
        if self.recipe.hints.frozen_given:
            like = without_frozen(like)
            if given:
                drawn = jax.jit(lambda seed: init(seed)["params"]["frozen"])(np.uint32(0))
                frozen = {"frozen": self.data.load_frozen(drawn)}

        # Read the weights of the checkpoint, or their average instead.
        params = like["params"]
        if average and "ema" in like:
            others = {name: leaf for name, leaf in params.items() if name != "trainable"}
            wanted = {"ema": like["ema"], "params": others}
            arrays = load_arrays(self.checkpoint, wanted, only=AVERAGED)
        else:
            arrays = load_arrays(self.checkpoint, {"params": params}, only=PARAMETERS)
        return evaluated(arrays) | frozen

    def params(self, *, average: bool = True, given: bool = True) -> Any:
        """Returns the parameters with dtypes that the loss accepts. The arguments are those of `stored`."""
        params = self.stored(average=average, given=given)
        return params | {"trainable": readable(params["trainable"])}

    def means(self, *, average: bool = True, evaluate: Evaluate | None = None) -> dict[str, Any]:
        """Returns the recipe's mean metrics over the validation set, and their total weight (for text: its tokens).

        Raises:
            RunError: There is no validation set.
        """
        recipe, counted = self.recipe, 0.0
        if evaluate is None and average:  # the executable that evaluated while the run trained, for one device
            alone = dataclasses.replace(self.plan.with_levers(fsdp=1), devices=1)
            functions = functions_here(recipe, alone, self.options, steps=self.prepared.steps)
            lowered = functions.evaluate(recipe.spec.validation_batch(alone.micro_batch))
            evaluate = compiled(lowered, deterministic=alone.deterministic)
        elif evaluate is None:
            evaluate = jax.jit(make_evaluate(self.task))

        def evaluate_and_count(params: Any, batch: Mapping[str, Any]) -> Mapping[str, LossSum]:
            nonlocal counted
            sums = evaluate(params, batch)
            counted += float(sums["loss"].weight)
            return sums

        batches = self.data.validation(examples=self.plan.micro_batch)
        sums = summed(iter(batches), evaluate_and_count, self.stored(average=average))
        if not sums:
            raise RunError(f"{self.folder.path} has no held-out set to evaluate on: {recipe.data.no_validation}")
        means = {name.removeprefix("validation_"): value for name, value in sums.items()}
        means = recipe.model.uses.reported(means, recipe.spec)
        of_text = recipe.spec.tokens is not None
        if of_text:
            means["perplexity"] = math.exp(min(means["loss"], 700.0))
        unit = "tokens" if of_text else "weight"  # a user's loss may count anything
        return {**means, unit: round(counted)}


def params_without_code(folder: RunFolder, *, step: str, average: bool) -> dict[str, Any]:
    """Returns the parameters of a run as nested dicts. Needs no functions of its recipe.

    Raises:
        RunError: The weights are stored in fewer than 32 bits, which only the recipe can read.
    """
    storage = folder.planned().plan.storage
    bits = min(storage.weight_bits, storage.frozen_bits)
    if bits < 32:
        raise RunError(
            f"{folder.path} keeps its weights in {bits} bits, and the functions that"
            " read them are not here: call plimsoll.plan(loss, ...).train(init, data, run=...) with them first"
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
    return evaluated({"params": {}} | state)


def answer(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer of the run's recipe to a command that only some recipes support (`recipes/verbs.py`).

    Args:
        verb: Name of the command, a key of `Uses.verbs` of the recipe.
        request: `run` (folder), `step`, and the options of the command.
    """
    trained = Trained(request["run"], step=request["step"])
    return resolved(trained.recipe.model.uses.verbs[verb].answer)(trained, request)


def choose(folder: RunFolder, step: str, best_by: str = "loss") -> int:
    """Returns the number of optimizer steps at a checkpoint.

    Args:
        folder: Folder of the run.
        step: A number, `last` or `best`. Without evaluations `best` is the last checkpoint.
        best_by: Metric by which `best` is chosen (`Schedule.best_by`).
    """
    folder.require_saved()
    steps = folder.saved_steps()
    rows = read_rows(folder.metrics, after=Prepared.read(folder).data_since)
    best = best_of(rows, steps, best_by).step
    names = {str(number): number for number in steps} | {"last": steps[-1], "best": best or steps[-1]}
    if step in names:
        return names[step]
    there = ", ".join(f"{number} (best)" if number == best else str(number) for number in steps)
    raise CheckpointError(
        f"{folder.path} has no checkpoint of step {step!r}; it has {there}. Name one of them, `best` or `last`"
    )


def whole(folder: RunFolder, step: str, best_by: str = "loss") -> int:
    """Returns the step of `choose` after verifying the checkpoint's checksums: a flipped bit would load silently."""
    chosen = choose(folder, step, best_by)
    problem = damage(folder.checkpoint(chosen))
    if problem is None:
        return chosen
    others = [f"--step {other}" for other in folder.saved_steps() if other != chosen]
    instead = f"use {' or '.join(others)}, or train" if others else "train"
    raise CheckpointError(
        f"checkpoint {chosen} of {folder.path} is damaged ({problem}): {instead} again, which sets it aside"
    )
