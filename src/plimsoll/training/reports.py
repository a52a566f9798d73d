"""Numbers of what the executables report: of one step, and of all batches of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.training import memory
from plimsoll.types import Batch


class EvaluationStopped(Exception):
    """The end of an evaluation before its last batch."""


def numbers_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns a step's report as numbers: sums are divided, and left out where their weight is zero."""
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
    """Returns sums over all batches, divided once: no mean of means.

    `validation_` is put before every name. A metric whose weight is zero in all batches is left out.

    Raises:
        EvaluationStopped: `is_stopped()` was true between two batches.
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
    """Returns the report in arrays of NumPy, a sum and its weight as a tuple.

    `device_get` begins copies to the host: 40 us each on a CPU, which has them already.
    """
    if jax.default_backend() != "cpu":
        return jax.device_get(dict(report))
    return {
        name: tuple(map(np.asarray, value)) if isinstance(value, tuple) else np.asarray(value)
        for name, value in report.items()
    }
