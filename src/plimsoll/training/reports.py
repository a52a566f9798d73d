"""Converts metrics of a step, or of all batches of an evaluation, to numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.training import memory
from plimsoll.types import Batch


class EvaluationStopped(Exception):
    """Raised when an evaluation is stopped before its last batch."""


def numbers_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Converts a step's report to numbers. Sums become means; a sum with weight zero is left out."""
    numbers = {}
    for name, value in on_host(report).items():
        if not isinstance(value, tuple):
            numbers[name] = float(value)
        elif weight := float(value[1]):
            numbers[name] = float(value[0]) / weight
    return numbers


def summed(
    batches: Iterable[Batch],
    evaluate: Callable[[Any, Batch], Any],
    params: Any,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Evaluates all batches, and returns each metric as the sum over all batches divided by the sum of weights.

    The names of the metrics get the prefix `validation_`. A metric with weight zero in all batches is left out.

    Args:
        batches: The batches.
        evaluate: Function from parameters and a batch to sums with weights.
        params: The parameters.
        is_stopped: Called before each batch; True ends the evaluation.

    Raises:
        EvaluationStopped: `is_stopped()` returned True.
    """
    totals: dict[str, tuple[float, float]] = {}
    between = memory.BetweenSteps()
    for batch in batches:
        if is_stopped():
            raise EvaluationStopped
        report = on_host(evaluate(params, dict(batch)))
        for name, (total, weight) in report.items():
            old_total, old_weight = totals.get(name, (0.0, 0.0))
            totals[name] = (old_total + float(total), old_weight + float(weight))
        if jax.default_backend() == "cpu":
            between.settle()
    return {f"validation_{name}": total / weight for name, (total, weight) in totals.items() if weight}


def on_host(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report as NumPy arrays, with a sum and its weight as a tuple.

    On a CPU it avoids `jax.device_get`, which takes 40 us per array.
    """
    if jax.default_backend() != "cpu":
        return jax.device_get(dict(report))
    return {
        name: tuple(map(np.asarray, value)) if isinstance(value, tuple) else np.asarray(value)
        for name, value in report.items()
    }
