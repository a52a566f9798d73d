"""What is asked of a trained model for a page, and what is left out of it."""

import pytest

from plimsoll.errors import DataError
from plimsoll.files.run_folder import RunFolder
from plimsoll.inference import showcase
from plimsoll.inference.showcase import learning_rate, show
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registered import PRESETS, part_class
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict
from plimsoll.recipes.specs import WindowSpec
from plimsoll.recipes.verbs import resolved


def asked(run, **changes):
    return {"run": str(run.path), "metrics": {}, "limit_bytes": 2**40, "closed_loop": False, **changes}


@pytest.fixture
def run(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write("recipe.json", to_dict(preset("control")))
    spec = WindowSpec(arrays={}, families=("A", "B"), states=2)
    folder.write("data.json", Prepared(steps=100, steps_per_epoch=None, spec=spec).to_json())
    monkeypatch.setattr(showcase, "bound_memory", lambda limit: None)  # of this very process
    monkeypatch.setattr(showcase, "Trained", lambda run, step: run)
    return folder


@pytest.fixture
def drives(monkeypatch):
    """Replaces what makes the exhibit of a run of control."""

    def by(make):
        monkeypatch.setattr(showcase, "resolved", {"plimsoll.recipes.control.closed_loop:shown": make}.__getitem__)

    return by


@pytest.mark.parametrize("name", sorted({table.parts["model"] for table in PRESETS.values()}))
def test_every_function_that_a_model_names_is_there(name):
    uses = part_class("model", name).uses
    assert uses.shown
    named = [part.make for part in uses.shown]
    for verb in uses.verbs.values():
        named += [name for name in (verb.answer, verb.ask, verb.text) if name]
    assert all(callable(resolved(name)) for name in named)


def test_driving_is_left_out_unless_it_is_asked_for(run, drives):
    drawn = {"kind": "table", "title": "driven"}
    drives(lambda trained: [drawn])
    without = show(asked(run))
    assert without["exhibits"] == []
    assert without["left_out"] == ["how it drives: ask for it with --closed-loop, it takes minutes"]
    assert show(asked(run, closed_loop=True))["exhibits"] == [drawn]


def test_the_last_evaluation_is_shown(run):
    found = show(asked(run, metrics={"unexplained": {"0": 0.25, "1": 0.1}}))
    assert found["exhibits"][0]["rows"] == [["B", "0.900"], ["A", "0.750"]]


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (DataError("its file is gone"), "how it drives: its file is gone"),
        (MemoryError(), "it takes more than the 1.0 TiB"),
    ],
)
def test_what_cannot_be_shown_is_said_and_the_rest_is_shown(run, drives, problem, said):
    def fails(trained):
        raise problem

    drives(fails)
    found = show(asked(run, closed_loop=True))
    assert said in found["left_out"][0]
    assert found["learning_rate"] is not None
    drives(lambda trained: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a defect is not hidden
        show(asked(run, closed_loop=True))


@pytest.mark.parametrize("name", ["code", "sudoku-4x4"])
def test_the_learning_rate_is_the_recipes_own_schedule(name):
    recipe = preset(name)
    found = learning_rate(recipe, 1000)
    schedule = recipe.optimizer.schedule(1000)
    assert len(found["steps"]) == 200
    assert (found["steps"][0], found["steps"][-1]) == (1, 1000)
    for at in (0, 57, 199):
        assert found["rates"][at] == pytest.approx(float(schedule(found["steps"][at] - 1)), rel=1e-6)
    assert max(found["rates"]) == pytest.approx(recipe.options["learning_rate"], rel=0.01)
    assert learning_rate(recipe, 1)["steps"] == [1]
