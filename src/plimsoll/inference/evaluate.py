"""Metrics of a checkpoint on the validation set, and the fingerprint of a checkpoint. This module imports JAX.

Checksums are verified before a checkpoint is read. `evaluate` reads only the parameters from it.
Nothing in the run folder is written, renamed or locked: a run can be used while it is being trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.errors import CheckpointError, RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.inference.trained import Trained
from plimsoll.recipes.saved import name_of
from plimsoll.recipes.verbs import Verb, resolved
from plimsoll.training.checkpoints import read_leaves
from plimsoll.training.fingerprint import fingerprint

UNSUPPORTED = {
    "submission": "--submission writes answers to tasks of ARC, and {run} has none: leave it out",
    "raw": "--raw is for runs that keep an average of their weights, and {run} keeps none (--ema-decay 0): what is"
    " evaluated are its weights as they were trained. Leave it out",
    "keep_seen": "--keep-seen is for runs of recommend, and {run} is one of {recipe}: leave it out",
    "closed_loop": "--closed-loop drives the systems of the recipe control, and this is a run of another",
}
"""Error message for each option of `plimsoll evaluate` that only some recipes support (`Verb.options`)."""


def evaluate(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns validation metrics of a checkpoint: means over the validation set, or metrics by the recipe's function.

    Args:
        request: `run` (folder), `step`, and options of `UNSUPPORTED`. `raw` adds the metrics of the weights as they
            were trained, without averaging.

    Raises:
        DataError: The data has changed since the run began.
        RecipeError: The recipe does not support an option.
    """
    trained = Trained(request["run"], step=request["step"])
    recipe = trained.recipe
    verb = recipe.model.uses.verbs.get("evaluate", Verb())
    supported = {*verb.options, *(["raw"] if recipe.optimizer.ema_decay else [])}
    _ = trained.data  # other data is refused first
    for option, refusal in UNSUPPORTED.items():
        if request.get(option) and option not in supported:
            raise RecipeError(refusal.format(run=trained.path, recipe=name_of(recipe)))
    answer = {"run": request["run"], "step": trained.step}
    answer |= resolved(verb.answer)(trained, request) if verb.answer else trained.means()
    if request.get("raw") and "raw" not in answer:
        means = trained.means(average=False)
        answer["raw"] = {name: value for name, value in means.items() if isinstance(value, float)}
    return answer


def prove(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fingerprint (a hash of the training state) of the newest undamaged checkpoint of `request["run"]`."""
    folder = RunFolder(request["run"])
    step, notes = folder.newest_whole()
    if not step:
        raise CheckpointError(f"no checkpoint of {folder.path} is whole: {'; '.join(notes)}. Train again to start anew")
    leaves = read_leaves(folder.checkpoint(step))
    digest = fingerprint(leaves, folder.position(step).loader)
    return {"run": request["run"], "step": step, "fingerprint": digest, "notes": notes}
