"""A network drives the systems of its own file: what evaluate --closed-loop answers and prints, and a report shows."""

import jax
import pytest

from plimsoll.recipes.control import closed_loop
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


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    monkeypatch.setattr(closed_loop, "SECONDS", 0.4)
    monkeypatch.setattr(closed_loop, "STARTS", 1)


def test_driving_is_an_option_of_the_evaluation(trained):
    assert "closed_loop" in trained.recipe.evaluation_options
    assert closed_loop.evaluate(trained, {}) == {"loss": 1.0}
    answer = {"run": "runs/x", "step": 7} | closed_loop.evaluate(trained, {"closed_loop": True})
    assert answer["closed_loop"]["families"].keys() == FAMILIES.keys()
    assert answer["closed_loop"]["held_out"]
    lines = evaluation(answer).splitlines()
    assert lines[:2] == ["runs/x at step 7, on its held-out set", "  loss  1.0000"]
    assert lines[3].startswith("driving 35 systems for 0.4 s, held-out variants: what a journey costs")


def test_a_report_has_a_table_of_all_systems_and_charts_of_some(trained):
    table, *charts = closed_loop.shown(trained)
    assert len(table["rows"]) == len(FAMILIES)
    assert "by the checkpoint of step 7" in table["caption"]
    assert 1 <= len(charts) <= closed_loop.CHARTS
    assert {*charts[0]["y"]} == {"learned", "optimal"}
