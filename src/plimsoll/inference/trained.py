"""A run that has a checkpoint: its recipe, its plan and the parameters of one step, after checksums were verified.

Nothing in the run folder is written, renamed or locked: a run can be used while it is being trained."""

from __future__ import annotations

from typing import Any

import jax

from plimsoll.errors import CheckpointError
from plimsoll.planned import Plan
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.saved import from_dict
from plimsoll.runs.folder import RunFolder
from plimsoll.training.checkpoint import Checkpoints, Saved, damage, load_part
from plimsoll.training.step import evaluated, make_init

PARAMETERS = "['params']"
"""Where a state keeps them, as a checkpoint spells it."""


AVERAGED = "['ema']", "['params']['frozen']", "['params']['tables']"
"""The same, where an average is used instead of what is trained."""


class Trained:
    """A run that has a checkpoint: its recipe, its plan, and the parameters of a step."""

    def __init__(self, run: str, *, step: str) -> None:
        self.folder = RunFolder(run)
        self.recipe = from_dict(self.folder.read("recipe.json"))
        self.plan = Plan.from_dict(self.folder.read("plan.json")["plan"])
        self.prepared = Prepared(**self.folder.read("data.json"))
        self.saved = whole(self.folder, step)
        self.run, self.step = run, self.saved.step

    def params(self, *, average: bool = True) -> Any:
        """With the average of the weights where one is kept; without `average`, as they were trained."""
        task = self.recipe.task(self.plan.compute(jax.default_backend()))
        rule = self.recipe.update_rule(self.prepared.steps, self.plan.storage)
        how: dict[str, Any] = {"frozen_bits": self.plan.frozen_bits, "precision": self.plan.precision}
        init = make_init(task, rule, **how, examples=self.plan.effective_batch)
        like = jax.eval_shape(init, jax.ShapeDtypeStruct((), "uint32"))
        if "ema" not in like or not average:
            return evaluated(load_part(self.saved, {"params": like["params"]}, only=PARAMETERS))
        frozen = {name: leaf for name, leaf in like["params"].items() if name != "trainable"}
        return evaluated(load_part(self.saved, {"ema": like["ema"], "params": frozen}, only=AVERAGED))


def choose(folder: RunFolder, step: str) -> Saved:
    """The checkpoint of that step, the `last` one, or the `best`: the last where nothing was evaluated."""
    checkpoints = Checkpoints(folder.checkpoints, in_background=False)
    found = {saved.step: saved for saved in checkpoints.all()}
    if not found:
        raise CheckpointError(
            f"{folder.path} has no checkpoint yet: one is saved every --save-every steps and when training stops"
        )
    last, best = max(found), (checkpoints.best() or {}).get("step")
    if step in ("best", "last"):
        return found[best if step == "best" and best in found else last]
    if not step.isdigit() or int(step) not in found:
        there = ", ".join(f"{number}{' (best)' if number == best else ''}" for number in sorted(found))
        raise CheckpointError(
            f"{folder.path} has no checkpoint of step {step!r}; it has {there}. Name one of them, `best` or `last`"
        )
    return found[int(step)]


def whole(folder: RunFolder, step: str) -> Saved:
    """As `choose`, its checksums verified: a flipped bit would load silently."""
    saved = choose(folder, step)
    problem = damage(saved)
    if problem is not None:
        others = [f"--step {other.step}" for other in _all(folder) if other.step != saved.step]
        instead = f"use {' or '.join(others)}, or train" if others else "train"
        raise CheckpointError(
            f"checkpoint {saved.step} of {folder.path} is damaged ({problem}): {instead} again, which sets it aside"
        )
    return saved


def newest_whole(folder: RunFolder) -> tuple[Saved, list[str]]:
    """The newest that passes its checksums, and in words those that do not."""
    choose(folder, "last")  # says it where there is none at all
    notes = []
    for saved in _all(folder):
        problem = damage(saved)
        if problem is None:
            return saved, notes
        notes.append(f"checkpoint {saved.step} is damaged ({problem})")
    raise CheckpointError(f"no checkpoint of {folder.path} is whole: {'; '.join(notes)}. Train again to start anew")


def _all(folder: RunFolder) -> list[Saved]:
    return Checkpoints(folder.checkpoints, in_background=False).all()
