"""Sampling of text from a run's language model, for `plimsoll sample` and for reports."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.models.sampling import continued, make_next_token
from plimsoll.types import TrainedRun

Continue = Callable[..., Iterator[int]]
"""Function `(task, weights, prompt, *, length, known, end, tokens, temperature, top_k, seed)` that yields sampled ids.
`length` is the number of tokens that the model reads at once, `known` the number of ids of the tokenizer, `end` the id
that ends a text, and `tokens` the most ids to sample."""

SHOWN_TOKENS, SHOWN_SEEDS = 160, (0, 1)
"""Number of tokens of each sample text in a report, and the seed of each text."""


def by_windows(task: Any, weights: dict, prompt: list[int], *, known: int, top_k: int, **options: Any) -> Iterator[int]:
    """Yields sampled ids after the prompt. Each takes a forward pass over a window of the newest tokens."""
    next_token = make_next_token(task.decoder, known=known, top_k=top_k)
    return continued(next_token, weights, prompt, **options)


def sample(trained: TrainedRun, request: Mapping[str, Any], go_on: Continue = by_windows) -> dict[str, Any]:
    """Returns the request with the text that follows its prompt.

    Args:
        trained: A run whose folder has a tokenizer.json.
        request: `prompt`, `tokens` (most tokens to sample), `temperature`, `top_k`, `seed`.
        go_on: Function that samples the ids after the prompt.
    """
    tokenizer = load_tokenizer(trained.path / "tokenizer.json")
    prompt = tokenizer.encode(request["prompt"]).tolist() or [tokenizer.end_of_text]
    options = {name: request[name] for name in ("tokens", "temperature", "top_k", "seed")}
    options |= {"end": tokenizer.end_of_text, "known": tokenizer.size, "length": trained.prepared.spec.length}
    ids = list(go_on(trained.task, trained.params()["trainable"], prompt, **options))
    return written(trained, request, ids, tokenizer.decode(ids))


def written(trained: TrainedRun, request: Mapping[str, Any], ids: list[int], text: str) -> dict[str, Any]:
    """Returns the request with the sampled text. `ended` is True if the model itself ended the text."""
    return {
        **request,
        "step": trained.step,
        "text": text,
        "tokens": len(ids),
        "ended": len(ids) < request["tokens"],
    }


def texts(trained: TrainedRun, answer: Callable[..., Mapping[str, Any]] = sample) -> list[dict[str, Any]]:
    """Returns sample texts for a report, each from the beginning of a document.

    Args:
        trained: The run.
        answer: Function of the run and a request that returns the answer of `plimsoll sample`.
    """
    request = {"prompt": "", "tokens": SHOWN_TOKENS, "temperature": 0.8, "top_k": 40}
    answers = [answer(trained, request | {"seed": seed}) for seed in SHOWN_SEEDS]
    return [
        {
            "kind": "texts",
            "title": "What it writes",
            "caption": f"From the beginning of a document, by the checkpoint of step {trained.step:,}: temperature"
            f" {request['temperature']}, among the {request['top_k']} likeliest tokens,"
            f" seeds {' and '.join(map(str, SHOWN_SEEDS))}.",
            "items": [{"prompt": "", "text": answer["text"]} for answer in answers],
        }
    ]
