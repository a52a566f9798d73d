"""Text from a trained language model, for `plimsoll sample` and for reports. In a process that imports JAX."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from plimsoll.models.sampling import continued, make_next_token
from plimsoll.recipes.writing import texts, write


def _continued(task: Any, weights: dict, prompt: list[int], *, known: int, top_k: int, **options: Any) -> Iterator[int]:
    next_token = make_next_token(task.decoder, known=known, top_k=top_k)
    return continued(next_token, weights, prompt, **options)


sample = partial(write, continued=_continued)
"""Answer of `plimsoll sample`: text after a prompt."""
shown = partial(texts, answer=sample)
"""Exhibit of a report."""
