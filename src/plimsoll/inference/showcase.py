"""Exhibits (tables, texts, plots) of a report that need JAX: from the trained model, and the learning rate.

They are made in a process with a memory limit. If an exhibit cannot be made, a sentence says why, and the others are
shown. Report pages draw the exhibits (`report/page/run.py`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import psutil

from plimsoll.errors import PlimsollError
from plimsoll.files.run_folder import RunFolder
from plimsoll.inference.trained import Trained
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import from_dict
from plimsoll.recipes.verbs import resolved
from plimsoll.training import allocator
from plimsoll.units import format_bytes

RATES = 200
"""Number of steps at which the learning rate is evaluated."""

Exhibit = dict[str, Any]


def show(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the exhibits of a run, a sentence about each one that is left out, and the learning rate.

    Args:
        request: `run` (folder), `limit_bytes` of resident memory, `metrics` (means of the last evaluation), and
            `closed_loop` (True for exhibits that take minutes, too).
    """
    folder = RunFolder(request["run"])
    recipe = from_dict(folder.read("recipe.json"))
    prepared = Prepared.read(folder)
    bound_memory(request["limit_bytes"])
    exhibits: list[Exhibit] = []
    left_out: list[str] = []

    def attempt(what: str, make: Callable[[], list[Exhibit]]) -> None:
        try:
            exhibits.extend(make())
        except PlimsollError as problem:
            left_out.append(f"{what}: {problem}")
        except Exception as problem:
            if not allocator.refused(problem):
                raise
            limit = format_bytes(request["limit_bytes"])
            left_out.append(f"{what}: it takes more than the {limit} that it may use here")

    uses, spec = recipe.model.uses, prepared.spec
    attempt("the last evaluation", lambda: uses.exhibits(request["metrics"], spec))
    for part in uses.shown:
        if part.takes_minutes and not request["closed_loop"]:
            left_out.append(f"{part.words}: ask for it with --closed-loop, it takes minutes")
            continue
        attempt(part.words, lambda make=part.make: resolved(make)(Trained(request["run"], step="best")))
    return {"exhibits": exhibits, "left_out": left_out, "learning_rate": learning_rate(recipe, prepared.steps)}


def bound_memory(limit_bytes: int) -> None:
    """Limits the memory of this process: allocations beyond `limit_bytes` then fail, and the process is not killed.

    The limit is one of private writable memory. What JAX reserves at its start but does not use is added to it.
    """
    jax.devices()
    now = psutil.Process().memory_info()
    room = limit_bytes - now.rss
    if room <= 0:
        raise PlimsollError(
            f"a process that has only started JAX takes {format_bytes(now.rss)}, and it may use"
            f" {format_bytes(limit_bytes)}"
        )
    reserved = getattr(now, "data", None)  # of Linux alone
    if reserved is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (reserved + room, hard))


def learning_rate(recipe: Recipe, steps: int) -> dict[str, list[float]] | None:
    """Returns up to `RATES` steps of a run with their learning rates; None for an optimizer without a schedule."""
    schedule = recipe.optimizer.schedule(steps)
    if schedule is None:
        return None
    chosen = sorted({round(part * (steps - 1) / (RATES - 1)) for part in range(RATES)})
    rates = jax.vmap(schedule)(jnp.asarray(chosen, jnp.int32))
    return {"steps": [step + 1 for step in chosen], "rates": [float(rate) for rate in rates]}
