"""Text from a trained language model, for `plimsoll sample` and for reports. In a process that imports JAX."""

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll.models.sampling import continued, make_next_token
from plimsoll.recipes.writing import texts, write
from plimsoll.types import TrainedRun


def sample(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns text after a prompt: see `recipes.writing.write`."""
    return write(trained, request, _continued)


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns what a report shows of the model."""
    return texts(trained, _continued)


def _continued(task: Any, weights: dict, prompt: list[int], *, known: int, top_k: int, **options: Any) -> Iterator[int]:
    next_token = make_next_token(task.decoder, known=known, top_k=top_k)
    return continued(next_token, weights, prompt, **options)
