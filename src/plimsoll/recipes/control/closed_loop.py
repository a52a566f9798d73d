"""Evaluation of `plimsoll evaluate RUN --closed-loop`: the trained network drives the systems that it imitates.

The systems are the held-out variants of the run's own file, made again from the options that the file names.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from plimsoll.data.hdf5.writer import MADE_WITH
from plimsoll.errors import RecipeError
from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.control.model import Imitator
from plimsoll.recipes.control.prepare import code
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.recipe import Control
from plimsoll.recipes.control.simulate import evaluated, journeys, travelled
from plimsoll.recipes.control.variants import systems

SECONDS = 10.0
"""Seconds of a journey."""
VARIANTS, STARTS = 3, 4
"""Variants of each system, and starts of each variant."""


def closed_loop(recipe: Recipe, task: Any, params: Any, *, seed: int = 0) -> dict[str, Any]:
    """Returns each family's costs as multiples of the optimal controller's; `norms` of one journey each, for a plot."""
    if not isinstance(recipe, Control) or not isinstance(task, Imitator):
        raise RecipeError("--closed-loop drives the systems of the recipe control, and this is a run of another")
    made_with = recipe.rows.attributes.get(MADE_WITH)
    if made_with is None:
        raise RecipeError(
            f"{recipe.data} does not say which systems it was simulated with: --closed-loop needs a file of `plimsoll"
            " prepare control`"
        )
    known = {field.name for field in dataclasses.fields(ControlSet)}
    options = ControlSet(**{name: value for name, value in json.loads(str(made_with)).items() if name in known})
    first = options.variants_used - options.held_out_variants if options.held_out_variants else 0
    chosen = list(range(first, options.variants_used))[:VARIANTS]
    every = systems(variants=options.variants_used, uncertainty=options.uncertainty, dt=options.dt, seed=options.seed)
    rows = recipe.rows

    def scales(family: str) -> tuple[np.ndarray, np.ndarray]:
        states, controls = rows.largest(family)
        spread = rows.spreads[rows.families.index(family)][: len(controls)]
        return states, controls * spread

    starts = journeys(every, variants=chosen, starts=STARTS, dt=options.dt, scales=scales, codes=code, seed=seed)
    weights = readable(params["trainable"])
    results = travelled(
        starts,
        lambda inputs: task.predicted(weights, inputs),
        window=options.window,
        steps=round(SECONDS / options.dt),
        dt=options.dt,
        noise=options.noise,
        seed=seed,
    )
    names = [system.family.name for system in every]
    norms = results["norms"]
    shown = {name: norms[:, :, int(np.argmax(starts.family == number))] for number, name in enumerate(names)}
    seconds = np.arange(norms.shape[1]) * options.dt
    return {
        "seconds": SECONDS,
        "variants": chosen,
        "held_out": bool(options.held_out_variants),
        **evaluated(starts, names, results),
        "norms": {
            "time": seconds[::5].round(6).tolist(),
            **{
                name: {"optimal": norms[0, ::5].tolist(), "learned": norms[1, ::5].tolist()}
                for name, norms in shown.items()
            },
        },
    }
