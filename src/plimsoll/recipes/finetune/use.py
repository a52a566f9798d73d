"""Evaluates a tuned model and its base model, and samples answers to prompts. Imports JAX."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax

from plimsoll.data.chat.tokenizer import ChatTokenizer, Example
from plimsoll.errors import RecipeError
from plimsoll.levers.lora import LoRA
from plimsoll.models.sampling import continued, make_next_token, window_for
from plimsoll.recipes.finetune.data import tokenizer_of_run
from plimsoll.recipes.writing import texts, written
from plimsoll.types import LossSum, TrainedRun


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns mean metrics over the held-out documents; with adapters also `base_loss`, the loss without them."""
    del request
    means = trained.means()
    recipe = trained.recipe
    if not recipe.model.lora_rank:
        return means
    base = trained.task.task
    key = jax.random.key(0)  # unused: the base model has no dropout

    @jax.jit
    def of_base(weights: Any, batch: Any) -> LossSum:
        return base.loss({"trainable": weights}, None, batch, key, train=False)[0]

    def evaluate_base(params: Any, batch: Any) -> Mapping[str, LossSum]:
        return {"loss": of_base(params["frozen"]["base"], batch)}

    return means | {"base_loss": trained.means(evaluate=evaluate_base)["loss"]}


def sample(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request with the sampled text, which is an assistant's answer if the run learned conversations.

    Args:
        trained: The run.
        request: `prompt`, `tokens`, `temperature`, `top_k`, `seed`.

    Raises:
        DataError: The model's files have changed since the run began.
        RecipeError: The prompt has more tokens than the model can read.
    """
    recipe = trained.recipe
    _ = trained.data  # raises if the model's files have changed
    task = trained.task
    tokenizer = tokenizer_of_run(trained.path, trained.prepared.facts["day"])
    prompt = _prompt(tokenizer, request["prompt"], conversation=trained.prepared.facts["conversations"])
    positions = recipe.model.shape.positions
    if len(prompt) > positions:
        raise RecipeError(
            f"--prompt has {len(prompt):,} tokens, and {recipe.model.pretrained} was made to read {positions:,} at"
            " once: shorten it"
        )
    params = trained.params()
    if isinstance(task, LoRA):
        model, weights = cast(Any, task.task).decoder, task.adapted(params)
    else:
        model, weights = task.decoder, params["trainable"]
    next_token = make_next_token(model, known=tokenizer.size, top_k=request["top_k"])
    options: dict[str, Any] = {name: request[name] for name in ("tokens", "temperature", "seed")}
    length = window_for(len(prompt) + request["tokens"], longest=positions)
    options |= {"length": length, "end": tokenizer.end_of_text, "ends": tokenizer.stops()}
    ids = list(continued(next_token, weights, prompt, **options))
    return written(trained, request, ids, tokenizer.decode(ids))


def _prompt(tokenizer: ChatTokenizer, text: str, *, conversation: bool) -> list[int]:
    """Returns the token ids of a prompt, in the form of the training records; if it is empty, the id that begins a
    document."""
    if conversation and text:
        return tokenizer.prompt_of([{"role": "user", "content": text}]).tolist()
    ids = tokenizer.encode([Example(text, None, False)])[0][0].tolist()[:-1]  # without the end-of-text id
    return ids or [tokenizer.end_of_text if tokenizer.beginning is None else tokenizer.beginning]


shown = partial(texts, answer=sample)
"""Function of a trained run that returns a report's exhibit of sampled texts."""
