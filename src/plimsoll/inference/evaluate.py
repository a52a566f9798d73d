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

from plimsoll.engine.session import lowered
from plimsoll.errors import CheckpointError, RecipeError, RunError
from plimsoll.levers.weight_bits import readable
from plimsoll.models.language import NextToken
from plimsoll.models.sampling import continued, make_next_token
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.longcontext.streaming import Stream
from plimsoll.recipes.longcontext.streaming import continued as streamed
from plimsoll.recipes.longcontext.task import LongTokens
from plimsoll.recipes.puzzles.arc_votes import poll_for
from plimsoll.recipes.recommend.recipe import Recommend
from plimsoll.recipes.registry import from_dict, name_of
from plimsoll.runs.folder import RunFolder
from plimsoll.training.checkpoint import Checkpoints, Saved, damage, load_part, loader_position, read_leaves
from plimsoll.training.fingerprint import fingerprint
from plimsoll.training.loop import summed
from plimsoll.training.program import compiled
from plimsoll.training.step import evaluated, make_evaluate, make_init
from plimsoll.types import LossSum, Plan

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


def sample(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Text after a prompt. `asked`: `run`, `step`, `prompt`, `tokens`, `temperature`, `top_k`, `seed`."""
    from plimsoll.data.text.tokenizer import load_tokenizer

    trained = Trained(asked["run"], step=asked["step"])
    trained.recipe = trained.recipe.without_data(trained.prepared)
    compute = trained.plan.compute(jax.default_backend())
    task = trained.recipe.task(compute)
    if not isinstance(task, NextToken):
        raise RecipeError(f"{trained.folder.path} is a run of {name_of(trained.recipe)}, which writes no text")
    tokenizer = load_tokenizer(trained.folder.path / "tokenizer.json")
    prompt = tokenizer.encode(asked["prompt"]).tolist() or [tokenizer.end_of_text]
    options = {name: asked[name] for name in ("tokens", "temperature", "seed")}
    options |= {"end": tokenizer.end_of_text}
    weights, length = readable(trained.params()["trainable"]), trained.recipe.rate_per_example
    if isinstance(task, LongTokens):
        stream = Stream(task.decoder, context=length)
        ids = list(streamed(stream, weights, prompt, known=tokenizer.size, top_k=asked["top_k"], **options))
    else:
        next_token = make_next_token(task.decoder, known=tokenizer.size, top_k=asked["top_k"])
        ids = list(continued(next_token, weights, prompt, length=length, **options))
    return {
        **asked,
        "step": trained.saved.step,
        "text": tokenizer.decode(ids),
        "tokens": len(ids),
        "ended": len(ids) < asked["tokens"],
    }


def prove(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of the newest whole checkpoint. `asked`: `run`."""
    folder = RunFolder(asked["run"])
    folder.read("recipe.json")  # says it where this is no run
    saved, notes = newest_whole(folder)
    digest = fingerprint(read_leaves(saved), loader_position(saved))
    return {"run": asked["run"], "step": saved.step, "fingerprint": digest, "notes": notes}
