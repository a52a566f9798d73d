"""A network drives the systems of its own file: what evaluate --closed-loop answers and prints, and a report shows."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from plimsoll.errors import RecipeError
from plimsoll.recipes.control import closed_loop
from plimsoll.recipes.control.model import Imitator
from plimsoll.recipes.control.prepare import prepare
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.recipe import Control
from plimsoll.recipes.control.systems import FAMILIES
from plimsoll.recipes.control.tables import evaluation
from plimsoll.types import Compute


class Untrained:
    """A `types.TrainedRun` of initial parameters."""

    run, step = "runs/x", 7

    def __init__(self, recipe):
        self.recipe, self.plan = recipe, self

    def compute(self, platform):
        return Compute(platform=platform)

    def params(self, *, average=True):
        return self.recipe.task(Compute()).init(jax.random.key(0))

    def means(self):
        return {"loss": 1.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    file = tmp_path_factory.mktemp("control") / "windows.h5"
    prepare(ControlSet(samples=2_000, horizon=4.0, variants=2, held_out=0.5, window=16, stride=100), file)
    return Untrained(Control(data=str(file), width=16, heads=1, layers=1, batch_size=8, steps=2))


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr(closed_loop, "SECONDS", 0.4)
    monkeypatch.setattr(closed_loop, "STARTS", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_driving_is_an_option_of_the_evaluation(trained):
    assert "closed_loop" in trained.recipe.evaluation_options
    assert closed_loop.evaluate(trained, {}) == {"loss": 1.0}
    answer = {"run": "runs/x", "step": 7} | closed_loop.evaluate(trained, {"closed_loop": True})
    assert answer["closed_loop"]["families"].keys() == FAMILIES.keys()
    assert answer["closed_loop"]["held_out"]
    lines = evaluation(answer).splitlines()
    assert lines[:2] == ["runs/x at step 7, on its held-out set", "  loss  1.0000"]
    assert lines[3].startswith("driving 35 systems for 0.4 s, held-out variants: what a journey costs")


@pytest.mark.usefixtures("briefly")
def test_a_report_has_a_table_of_all_systems_and_charts_of_some(trained):
    table, *charts = closed_loop.shown(trained)
    assert len(table["rows"]) == len(FAMILIES)
    assert "by the checkpoint of step 7" in table["caption"]
    assert 1 <= len(charts) <= closed_loop.CHARTS
    assert {*charts[0]["y"]} == {"learned", "optimal"}


OPTIONS = {"samples": 2_000, "horizon": 4.0, "variants": 6, "held_out": 0.5, "window": 16, "noise": 0.25, "dt": 1 / 30}


@pytest.fixture
def driven(monkeypatch):
    """A file of two families, and a simulation whose norms are its times: what it is asked for, by name."""
    asked = {}
    rows = SimpleNamespace(
        families=["Tank", "Cart"], spreads=[np.array([2.0]), np.array([3.0, 5.0])],
        largest=lambda family: (np.array([9.0]), np.array([1.0] if family == "Tank" else [1.0, 10.0])),
        attributes={closed_loop.MADE_WITH: json.dumps({"options": OPTIONS | {"of_a_later_version": 1}})},
    )  # fmt: skip
    task = object.__new__(Imitator)
    task.predicted = lambda weights, inputs: (weights, inputs)
    recipe = SimpleNamespace(rows=rows, data="w.h5", task=lambda compute: task)
    trained = SimpleNamespace(
        recipe=recipe, step=1_234, plan=SimpleNamespace(compute=lambda backend: None),
        params=lambda: {"trainable": np.float32(4)}, means=lambda: {"loss": 1.0},
    )  # fmt: skip

    def systems(**options):
        asked["systems"] = options
        return [SimpleNamespace(family=SimpleNamespace(name=name)) for name in ("Cart", "Tank")]

    def journeys(every, **options):
        asked["journeys"] = options
        return SimpleNamespace(family=np.array([1, 1, 0]))

    def simulate(starts, predicted, **options):
        asked["simulated"] = options | {"predicted": predicted("inputs")}
        return {"norms": np.arange(2 * 12 * 3).reshape(2, 12, 3)}

    def costs(starts, names, found):
        assert found["norms"].shape == (2, 12, 3)
        return {"families": names}

    for name, made in {
        "systems": systems,
        "journeys": journeys,
        "simulate_journeys": simulate,
        "compare_costs": costs,
    }.items():
        monkeypatch.setattr(closed_loop, name, made)
    return trained, asked


def test_the_first_three_held_out_variants_are_driven_for_ten_seconds_from_four_starts(driven):
    trained, asked = driven
    found = closed_loop.closed_loop(trained)
    assert asked["systems"] == {
        "variants": 6,
        "uncertainty": ControlSet().uncertainty,
        "dt": 1 / 30,
        "seed": ControlSet().seed,
    }
    scales = asked["journeys"].pop("scales")
    assert asked["journeys"] == {"variants": [3, 4, 5], "starts": 4, "dt": 1 / 30, "seed": 0}
    assert {name: [part.tolist() for part in parts] for name, parts in scales.items()} == {
        "Tank": [[9.0], [2.0]], "Cart": [[9.0], [3.0, 50.0]]
    }  # fmt: skip
    assert asked["simulated"] == {
        "window": 16, "steps": 300, "dt": 1 / 30, "noise": 0.25, "seed": 0, "predicted": (4.0, "inputs")
    }  # fmt: skip
    assert (found["seconds"], found["variants"], found["held_out"]) == (10.0, [3, 4, 5], True)
    assert found["families"] == ["Cart", "Tank"]


def test_every_fifth_norm_of_a_familys_first_journey_is_kept_for_a_picture(driven):
    """Of twelve times those at 0, 5 and 10; Tank is family 1, whose first journey is 0, and Cart's is 2."""
    trained, _ = driven
    assert closed_loop.closed_loop(trained)["norms"] == {
        "time": [0.0, 0.166667, 0.333333],
        "Cart": {"optimal": [2, 17, 32], "learned": [38, 53, 68]},
        "Tank": {"optimal": [0, 15, 30], "learned": [36, 51, 66]},
    }


@pytest.mark.parametrize(("held_out", "variants"), [(0.0, [0, 1, 2]), (0.2, [5]), (0.4, [4, 5])])
def test_of_a_file_without_held_out_variants_the_first_are_driven_and_of_few_all(driven, held_out, variants):
    trained, asked = driven
    made = {closed_loop.MADE_WITH: json.dumps({"options": OPTIONS | {"held_out": held_out}})}
    trained.recipe.rows.attributes = made
    assert closed_loop.closed_loop(trained)["held_out"] == (held_out > 0)
    assert asked["journeys"]["variants"] == variants


def test_a_file_that_does_not_say_how_it_was_made_cannot_be_driven(driven):
    trained, _ = driven
    trained.recipe.rows.attributes = {}
    with pytest.raises(RecipeError, match=r"w\.h5 does not say which systems it was simulated with"):
        closed_loop.closed_loop(trained)


def test_a_report_ranks_families_and_draws_four_from_best_to_worst(monkeypatch):
    """Seven, of which one has no ratio: the first, third, fifth and last of them."""
    ratios = {"a": 3.0, "b": 1.0, "c": None, "d": 2.0, "e": 5.0, "f": 4.0, "g": 6.0}
    families = {
        name: {"cost_ratio": ratio, "lost": number, "journeys": 12}
        for number, (name, ratio) in enumerate(ratios.items())
    }
    norms = {name: {"learned": [1], "optimal": [2]} for name in ratios} | {"time": [0.0]}
    answer = {"families": families, "norms": norms, "seconds": 10.0, "variants": [0], "held_out": False}
    monkeypatch.setattr(closed_loop, "closed_loop", lambda trained: answer)
    table, *charts = closed_loop.shown(SimpleNamespace(step=1_234))
    assert [row[0] for row in table["rows"]] == ["b", "d", "a", "f", "e", "g", "c"]
    assert table["rows"][0][2] == "1 of 12"
    assert ", 10 s each, by the checkpoint of step 1,234:" in table["caption"]
    assert [chart["title"] for chart in charts] == ["Driving b", "Driving a", "Driving e", "Driving c"]
    assert charts[0]["y"] == {"learned": [1], "optimal": [2]}
    assert charts[0]["x"] == [0.0]
    few = {name: families[name] for name in ("b", "a")}
    monkeypatch.setattr(closed_loop, "closed_loop", lambda trained: answer | {"families": few})
    assert [chart["title"] for chart in closed_loop.shown(SimpleNamespace(step=1))[1:]] == ["Driving b", "Driving a"]
