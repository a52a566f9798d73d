"""Writes text after a prompt, by a run's language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from plimsoll.errors import RecipeError
from plimsoll.inference.trained import Trained
from plimsoll.levers.weight_bits import readable
from plimsoll.models.language import NextToken
from plimsoll.models.sampling import continued, make_next_token
from plimsoll.recipes.longcontext.streaming import Stream
from plimsoll.recipes.longcontext.streaming import continued as streamed
from plimsoll.recipes.longcontext.task import LongTokens
from plimsoll.recipes.saved import name_of


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
