"""A network drives the systems of its own file: what evaluate --closed-loop answers and prints, and a report shows."""

from functools import partial
from types import SimpleNamespace

import jax
import pytest

from making import made
from plimsoll.errors import RecipeError
from plimsoll.recipes.control import closed_loop, prepare, prepare_options
from plimsoll.recipes.control.lqr import systems
from plimsoll.recipes.control.systems import FAMILIES
from plimsoll.recipes.control.tables import evaluation
from plimsoll.types import Compute


class Untrained:
    """A `types.TrainedRun` of initial parameters."""

    run, step = "runs/x", 7

    def __init__(self, recipe):
        self.recipe = recipe
        self.task = recipe.task(Compute(platform="cpu"))

    def params(self, *, average=True):
        return jax.jit(self.task.init)(jax.random.key(0))

    def means(self):
        return {"loss": 1.0}


FEW = {name: FAMILIES[name] for name in ("CartPole", "DCMotor", "MassSpringDamper")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Of three families, of thirty-five."""
    file = tmp_path_factory.mktemp("control") / "windows.h5"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prepare_options, "FAMILIES", FEW)
        for module in (prepare, closed_loop):
            patched.setattr(module, "systems", partial(systems, names=tuple(FEW)))
        sizes = {"samples": 200, "variants": 2, "held_out": 0.5, "window": 16, "stride": 100}
        prepare.prepare(prepare_options.ControlSet(horizon=4.0, **sizes), file)
        yield Untrained(made("control", data=str(file), width=16, heads=1, layers=1, batch_size=8, steps=2))


def test_driving_is_an_option_of_the_evaluation_and_a_part_of_a_report(trained, monkeypatch):
    monkeypatch.setattr(closed_loop, "SECONDS", 0.4)
    monkeypatch.setattr(closed_loop, "STARTS", 1)
    assert "closed_loop" in trained.recipe.model.uses.verbs["evaluate"].options
    assert closed_loop.evaluate(trained, {}) == {"loss": 1.0}
    answer = {"run": "runs/x", "step": 7} | closed_loop.evaluate(trained, {"closed_loop": True})
    driven = answer["closed_loop"]
    assert driven["families"].keys() == FEW.keys()
    assert driven["held_out"]
    assert driven["variants"] == [1]  # the second of two
    assert driven["norms"]["time"] == [0.0, 0.1, 0.2, 0.3]  # every fifth of 20 steps
    assert "driving 3 systems for 0.4 s, held-out variants" in evaluation(answer)

    monkeypatch.setattr(closed_loop, "closed_loop", lambda trained: driven)
    table, *charts = closed_loop.shown(trained)
    assert len(table["rows"]) == len(FEW)
    assert "step 7" in table["caption"]
    assert 1 <= len(charts) <= closed_loop.CHARTS
    assert {*charts[0]["y"]} == {"learned", "optimal"}


def test_a_file_that_does_not_say_how_it_was_made_cannot_be_driven(trained, monkeypatch):
    monkeypatch.delitem(trained.recipe.data.rows.attributes, closed_loop.MADE_WITH)
    with pytest.raises(RecipeError, match=r"windows\.h5 does not say which systems it was simulated with"):
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
    assert [chart["title"] for chart in charts] == ["Driving b", "Driving a", "Driving e", "Driving c"]
    assert charts[0]["y"] == {"learned": [1], "optimal": [2]}
    assert charts[0]["x"] == [0.0]
    few = {name: families[name] for name in ("b", "a")}
    monkeypatch.setattr(closed_loop, "closed_loop", lambda trained: answer | {"families": few})
    assert [chart["title"] for chart in closed_loop.shown(SimpleNamespace(step=1))[1:]] == ["Driving b", "Driving a"]
