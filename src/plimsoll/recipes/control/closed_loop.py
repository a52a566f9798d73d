"""`plimsoll evaluate RUN --closed-loop`: the trained network drives the systems that it was to imitate.

Part of the joint: it brings a run of `control` and the simulation together. The systems are the held-out variants of
the run's own file, made again from what the file says of itself.
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
from plimsoll.recipes.control.simulate import journeys, judged, travelled
from plimsoll.recipes.control.variants import systems

SECONDS = 10.0
VARIANTS, STARTS = 3, 4
"""Of each system, and of each variant."""


def closed_loop(recipe: Recipe, task: Any, params: Any, *, seed: int = 0) -> dict[str, Any]:
    """Costs beside the optimal controller's, of every family; `norms` of one journey each, for a picture."""
    if not isinstance(recipe, Control) or not isinstance(task, Imitator):
        raise RecipeError("--closed-loop drives the systems of the recipe control, and this is a run of another")
    made = _made_with(recipe)
    first = made.variants_used - made.held_out_variants if made.held_out_variants else 0
    chosen = list(range(first, made.variants_used))[:VARIANTS]
    every = systems(variants=made.variants_used, uncertainty=made.uncertainty, dt=made.dt, seed=made.seed)
    rows = recipe.rows

    def scales(family: str) -> tuple[np.ndarray, np.ndarray]:
        states, controls = rows.largest(family)
        spread = rows.spreads[rows.families.index(family)][: len(controls)]
        return states, controls * spread

    of = journeys(every, variants=chosen, starts=STARTS, dt=made.dt, scales=scales, codes=code, seed=seed)
    weights = readable(params["trainable"])
    found = travelled(
        of,
        lambda inputs: task.predicted(weights, inputs),
        window=made.window,
        steps=round(SECONDS / made.dt),
        dt=made.dt,
        noise=made.noise,
        seed=seed,
    )
    names = [one.family.name for one in every]
    shown = {name: found["norms"][:, :, int(np.argmax(of.family == number))] for number, name in enumerate(names)}
    seconds = np.arange(found["norms"].shape[1]) * made.dt
    return {
        "seconds": SECONDS,
        "variants": chosen,
        "held_out": bool(made.held_out_variants),
        **judged(of, names, found),
        "norms": {
            "time": seconds[::5].round(6).tolist(),
            **{
                name: {"optimal": norms[0, ::5].tolist(), "learned": norms[1, ::5].tolist()}
                for name, norms in shown.items()
            },
        },
    }


def _made_with(recipe: Control) -> ControlSet:
    told = recipe.rows.attributes.get(MADE_WITH)
    if told is None:
        raise RecipeError(
            f"{recipe.data} does not say which systems it was simulated with: --closed-loop needs a file of `plimsoll"
            " prepare control`"
        )
    then, known = json.loads(str(told)), {field.name for field in dataclasses.fields(ControlSet)}
    return ControlSet(**{name: value for name, value in then.items() if name in known})
