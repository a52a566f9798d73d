"""`plimsoll evaluate RUN --closed-loop`: the trained network drives simulated systems in place of their controllers.

The systems are the variants that the run's HDF5 file holds out, or its training variants if it holds out none. Both
the network and the controllers drive them with the settings in that file.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from plimsoll.data.hdf5.writer import MADE_WITH
from plimsoll.errors import RecipeError
from plimsoll.recipes.control.data import Windows
from plimsoll.recipes.control.imitator import Imitating
from plimsoll.recipes.control.lqr import systems
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.simulate import compare_costs, journeys, simulate_journeys
from plimsoll.recipes.control.tables import cost_ratio, variants_driven
from plimsoll.types import TrainedRun

SECONDS = 10.0
VARIANTS, STARTS = 3, 4
"""Numbers of simulated variants of each system, and of initial states of each variant."""
CHARTS = 4
"""Number of systems whose simulations a report shows as charts."""


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns mean metrics over the held-out windows, and with `request["closed_loop"]` the result of `closed_loop`."""
    means = trained.means()
    return means | {"closed_loop": closed_loop(trained)} if request.get("closed_loop") else means


def closed_loop(trained: TrainedRun, *, seed: int = 0) -> dict[str, Any]:
    """Returns each family's costs relative to the optimal controller, and for charts the `norms` of the state over time
    in one simulation of each."""
    task = trained.task
    assert isinstance(task, Imitating)
    data: Windows = trained.recipe.data
    rows = data.rows
    made_with = rows.attributes.get(MADE_WITH)
    if made_with is None:
        raise RecipeError(
            f"{data.data} does not say which systems it was simulated with: --closed-loop needs a file of `plimsoll"
            " prepare control`"
        )
    made_with_options = json.loads(str(made_with))["options"]
    del made_with_options["method"]
    options = ControlSet(**made_with_options)
    first = options.variants_used - options.held_out_variants if options.held_out_variants else 0
    variants = list(range(first, options.variants_used))[:VARIANTS]
    every = systems(options)
    scales = {}
    for family, spread in zip(rows.families, rows.spreads, strict=True):
        states, controls = rows.largest(family)
        scales[family] = states, controls * spread[: len(controls)]
    starts = journeys(every, options, variants=variants, starts=STARTS, scales=scales, seed=seed)
    weights = trained.params()["trainable"]
    steps = round(SECONDS / options.dt)
    driven = simulate_journeys(starts, lambda inputs: task.predicted(weights, inputs), options, steps=steps, seed=seed)
    names = [system.family.name for system in every]
    seconds = np.arange(driven["norms"].shape[1]) * options.dt
    norms: dict[str, Any] = {"time": seconds[::5].round(6).tolist()}
    for number, name in enumerate(names):
        optimal, learned = driven["norms"][:, ::5, int(np.argmax(starts.family == number))].tolist()
        norms[name] = {"optimal": optimal, "learned": learned}
    return {
        "seconds": SECONDS,
        "variants": variants,
        "held_out": bool(options.held_out_variants),
        **compare_costs(starts, names, driven),
        "norms": norms,
    }


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns parts of a report: a table of costs, and charts of simulations of some systems, from best to worst."""
    driven = closed_loop(trained)
    norms = driven["norms"]
    ranked = sorted(driven["families"].items(), key=lambda item: item[1]["cost_ratio"] or float("inf"))
    chosen = [ranked[round(part * (len(ranked) - 1) / (CHARTS - 1))] for part in range(CHARTS)]
    charts = [
        {
            "kind": "curves",
            "title": f"Driving {name}",
            "caption": f"One journey of a system: see whether the learned controller brings its state to rest as the"
            f" optimal one does. The system's journeys cost {cost_ratio(family['cost_ratio'])} (median).",
            "x_label": "time, seconds",
            "y_label": "norm of the state",
            "x": norms["time"],
            "y": {"learned": norms[name]["learned"], "optimal": norms[name]["optimal"]},
            "may_be_logarithmic": True,
        }
        for name, family in dict(chosen).items()
    ]
    table = {
        "kind": "table",
        "title": "What driving costs",
        "caption": f"Of {variants_driven(driven)}, {driven['seconds']:g} s each, by the checkpoint of step"
        f" {trained.step:,}: the median cost of a journey, as a multiple of the optimal controller's. The best first.",
        "header": ["system", "x optimal", "lost"],
        "rows": [
            [name, cost_ratio(family["cost_ratio"]), f"{family['lost']} of {family['journeys']}"]
            for name, family in ranked
        ],
    }
    return [table, *charts]
