"""What a report shows of the trained model: text it writes, puzzles it solves, systems it drives, items it
ranks, its learning rate.

Part of the joint, in a process that imports JAX, whose memory may grow so far and no further. What cannot be shown is
said in a sentence, and the rest is shown all the same. Pages draw these dictionaries (`report/page/exhibits.py`).
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import psutil

from plimsoll.errors import PlimsollError
from plimsoll.recipes.base import Prepared, Recipe
from plimsoll.recipes.saved import from_dict
from plimsoll.runs.folder import RunFolder
from plimsoll.units import format_bytes

TOKENS = 160
SEEDS = (0, 1)
PUZZLES = 3
RATES = 200
"""Steps of which the learning rate is asked."""
USERS, LIKELIEST, HISTORY = 3, 5, 6
"""Users whose next item is ranked, items named for each, and items of a history that are told."""
DRIVEN = 4
"""Systems whose journeys are drawn."""

Exhibit = dict[str, Any]


def show(asked: Mapping[str, Any]) -> dict[str, Any]:
    """`asked`: `run`, `limit_bytes` of resident memory, `metrics` (the means of its last evaluation), `model` (whether
    it is asked at all), and `closed_loop` (whether it is to drive, which takes minutes)."""
    folder = RunFolder(asked["run"])
    recipe = from_dict(folder.read("recipe.json"))
    prepared = Prepared(**folder.read("data.json"))
    bound_memory(asked["limit_bytes"])
    exhibits: list[Exhibit] = []
    left_out: list[str] = []

    def tried(what: str, make: Callable[[], list[Exhibit]]) -> None:
        try:
            exhibits.extend(make())
        except PlimsollError as problem:
            left_out.append(f"{what}: {problem}")
        except (MemoryError, jax.errors.JaxRuntimeError) as problem:
            if not isinstance(problem, MemoryError) and "RESOURCE_EXHAUSTED" not in str(problem):
                raise
            left_out.append(f"{what}: it takes more than the {format_bytes(asked['limit_bytes'])} that it may use here")

    tried("the last evaluation", lambda: recipe.exhibits(asked["metrics"], prepared.facts))
    for name in recipe.shown if asked["model"] else ():
        if name == "drive" and not asked["closed_loop"]:
            left_out.append("how it drives: ask for it with --closed-loop, it takes minutes")
            continue
        tried(WORDS[name], lambda name=name: MAKERS[name](recipe, prepared, asked["run"]))
    return {"exhibits": exhibits, "left_out": left_out, "learning_rate": learning_rate(recipe, prepared.steps)}


def bound_memory(limit_bytes: int) -> None:
    """From here on the process may take what is left of `limit_bytes`: more is refused to it, not killed.

    Counted in private writable memory, of which a process has reserved more than it uses when JAX has started.
    """
    jax.devices()
    now = psutil.Process().memory_info()
    room = limit_bytes - now.rss
    if room <= 0:
        raise PlimsollError(
            f"a process that has only started JAX takes {format_bytes(now.rss)}, and it may use"
            f" {format_bytes(limit_bytes)}"
        )
    reserved = getattr(now, "data", None)  # Linux says it
    if reserved is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (reserved + room, hard))


def learning_rate(recipe: Recipe, steps: int) -> dict[str, list[float]] | None:
    schedule = recipe.schedule(steps)
    if schedule is None:
        return None
    chosen = sorted({round(part * (steps - 1) / (RATES - 1)) for part in range(RATES)})
    rates = jax.vmap(schedule)(jnp.asarray(chosen, jnp.int32))
    return {"steps": [step + 1 for step in chosen], "rates": [float(rate) for rate in rates]}


def _texts(recipe: Recipe, prepared: Prepared, run: str) -> list[Exhibit]:
    from plimsoll.inference.sample import sample

    asked = {"run": run, "step": "best", "prompt": "", "tokens": TOKENS, "temperature": 0.8, "top_k": 40}
    found = [sample(asked | {"seed": seed}) for seed in SEEDS]
    step = found[0]["step"]
    return [
        {
            "kind": "texts",
            "title": "What it writes",
            "caption": f"From the beginning of a document, by the checkpoint of step {step:,}: temperature 0.8, among"
            f" the 40 likeliest tokens, seeds {' and '.join(map(str, SEEDS))}.",
            "items": [{"prompt": "", "text": one["text"]} for one in found],
        }
    ]


def _puzzles(recipe: Recipe, prepared: Prepared, run: str) -> list[Exhibit]:
    from plimsoll.inference.trained import Trained
    from plimsoll.recipes.puzzles.question import TEST, question
    from plimsoll.recipes.puzzles.solution_text import drawn_rows, said_of
    from plimsoll.recipes.puzzles.solve import solve

    recipe.data_changed(prepared)  # refuses another set: what it says besides is for those who train on it
    items, trained = [], Trained(run, step="best")
    for number in range(PUZZLES):
        asked = question(recipe, run, f"{TEST}{number}")
        found = solve(trained, vars(asked))
        before, after = (drawn_rows(found[side], found["box"]) for side in ("puzzle", "answer"))
        items.append({"name": f"{TEST}{number}", "before": before, "after": after, "said": said_of(found)[:-1]})
    caption = f"The first {PUZZLES} of the test split, before and after, by the checkpoint of step {trained.step:,}."
    return [{"kind": "grids", "title": "What it solves", "caption": caption, "items": items}]


def _journeys(recipe: Recipe, prepared: Prepared, run: str) -> list[Exhibit]:
    from plimsoll.inference.trained import Trained
    from plimsoll.recipes.control.closed_loop import closed_loop

    trained = Trained(run, step="best")
    task = recipe.task(trained.plan.compute(jax.default_backend()))
    found = closed_loop(recipe, task, trained.params())
    ranked = sorted(found["families"], key=lambda name: found["families"][name]["cost_ratio"] or float("inf"))
    chosen = [ranked[round(part * (len(ranked) - 1) / (DRIVEN - 1))] for part in range(DRIVEN)]
    norms = found["norms"]
    charts = [
        {
            "kind": "curves",
            "title": f"Driving {name}",
            "caption": f"One journey of a system: see whether the learned controller brings its state to rest as the"
            f" optimal one does. Its journeys cost {_ratio(found['families'][name]['cost_ratio'])} (median).",
            "x_label": "time, seconds",
            "y_label": "norm of the state",
            "x": norms["time"],
            "y": {"learned": norms[name]["learned"], "optimal": norms[name]["optimal"]},
            "may_be_logarithmic": True,
        }
        for name in dict.fromkeys(chosen)
    ]
    rows = [[name, _ratio(found["families"][name]["cost_ratio"]), _lost(found["families"][name])] for name in ranked]
    kind = "held-out variants" if found["held_out"] else "variants that it was trained on"
    return [
        {
            "kind": "table",
            "title": "What driving costs",
            "caption": f"Of {kind}, {found['seconds']:g} s each, by the checkpoint of step {trained.saved.step:,}: the"
            " median cost of a journey, as a multiple of the optimal controller's. The best first.",
            "header": ["system", "x optimal", "lost"],
            "rows": rows,
        },
        *charts,
    ]


def _ranked(recipe: Recipe, prepared: Prepared, run: str) -> list[Exhibit]:
    from plimsoll.inference.trained import Trained
    from plimsoll.recipes.recommend.rank import next_of_users

    return [
        {
            "kind": "table",
            "title": f"What comes next, user {number} of the test split",
            "caption": f"After {_told(user['history'])}. Really taken then: {_titled(user['taken'])}, which stands"
            f" {user['place']:,}. of what was not taken before, by the checkpoint of step {user['step']:,}.",
            "header": ["item", "place", "probability"],
            "rows": [
                [
                    _titled(item) + (" (taken)" if item["id"] == user["taken"]["id"] else ""),
                    str(place),
                    f"{100 * item['probability']:.2f} %",
                ]
                for place, item in enumerate(user["items"], start=1)
            ],
        }
        for number, user in enumerate(next_of_users(Trained(run, step="best"), users=USERS, top=LIKELIEST), start=1)
    ]


def _told(history: list[dict[str, Any]]) -> str:
    """The newest items of it, oldest first."""
    earlier = len(history) - HISTORY
    newest = ", ".join(map(_titled, history[-HISTORY:]))
    return f"{earlier:,} more, {newest}" if earlier > 0 else newest


def _titled(item: Mapping[str, Any]) -> str:
    return item["title"] or item["original"]


def _ratio(value: float | None) -> str:
    return "lost" if value is None else f"{value:.2f} x"


def _lost(family: Mapping[str, Any]) -> str:
    return f"{family['lost']} of {family['journeys']}"


MAKERS: dict[str, Callable[[Recipe, Prepared, str], list[Exhibit]]] = {
    "sample": _texts,
    "solve": _puzzles,
    "drive": _journeys,
    "rank": _ranked,
}
WORDS = {"sample": "what it writes", "solve": "what it solves", "drive": "how it drives", "rank": "what it ranks"}
