"""`plimsoll evaluate RUN --closed-loop`: the trained network drives the systems whose controllers it imitates.

The systems are the held-out variants of the run's own file, simulated from the settings that the file holds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from plimsoll.data.hdf5.writer import MADE_WITH
from plimsoll.errors import RecipeError
from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.control.model import Imitator
from plimsoll.recipes.control.prepare import code
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.recipe import Control
from plimsoll.recipes.control.simulate import journeys, judged, travelled
from plimsoll.recipes.control.tables import cost_ratio, lost, variants_driven
from plimsoll.recipes.control.variants import systems
from plimsoll.types import TrainedRun

SECONDS = 10.0
VARIANTS, STARTS = 3, 4
"""Of each system, and of each variant."""
CHARTS = 4
"""Systems whose journeys a report draws."""


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the means over the held-out windows; with `request["closed_loop"]` also what driving costs."""
    means = trained.means()
    return means | {"closed_loop": closed_loop(trained)} if request.get("closed_loop") else means


def closed_loop(trained: TrainedRun, *, seed: int = 0) -> dict[str, Any]:
    """Returns costs beside the optimal controller's, of every family, and `norms` of one journey each for a picture."""
    recipe: Control = trained.recipe
    task = recipe.task(trained.plan.compute(jax.default_backend()))
    assert isinstance(task, Imitator)
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
    weights = readable(trained.params()["trainable"])
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


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns the exhibits of a report: what driving costs, and the journeys of some systems from best to worst."""
    driven = closed_loop(trained)
    families, norms = driven["families"], driven["norms"]
    ranked = sorted(families, key=lambda name: families[name]["cost_ratio"] or float("inf"))
    chosen = [ranked[round(part * (len(ranked) - 1) / (CHARTS - 1))] for part in range(CHARTS)]
    charts = [
        {
            "kind": "curves",
            "title": f"Driving {name}",
            "caption": f"One journey of a system: see whether the learned controller brings its state to rest as the"
            f" optimal one does. Its journeys cost {cost_ratio(families[name]['cost_ratio'])} (median).",
            "x_label": "time, seconds",
            "y_label": "norm of the state",
            "x": norms["time"],
            "y": {"learned": norms[name]["learned"], "optimal": norms[name]["optimal"]},
            "may_be_logarithmic": True,
        }
        for name in dict.fromkeys(chosen)
    ]
    table = {
        "kind": "table",
        "title": "What driving costs",
        "caption": f"Of {variants_driven(driven)}, {driven['seconds']:g} s each, by the checkpoint of step"
        f" {trained.step:,}: the median cost of a journey, as a multiple of the optimal controller's. The best first.",
        "header": ["system", "x optimal", "lost"],
        "rows": [[name, cost_ratio(families[name]["cost_ratio"]), lost(families[name])] for name in ranked],
    }
    return [table, *charts]


def _made_with(recipe: Control) -> ControlSet:
    told = recipe.rows.attributes.get(MADE_WITH)
    if told is None:
        raise RecipeError(
            f"{recipe.data} does not say which systems it was simulated with: --closed-loop needs a file of `plimsoll"
            " prepare control`"
        )
    then, known = json.loads(str(told)), {field.name for field in dataclasses.fields(ControlSet)}
    return ControlSet(**{name: value for name, value in then.items() if name in known})
