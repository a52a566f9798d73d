"""What an evaluation answers and refuses, of a run that is not read: its metrics are known."""

from types import SimpleNamespace

import pytest

from plimsoll.errors import DataError, RecipeError
from plimsoll.inference import evaluate as module
from plimsoll.recipes.verbs import Verb


@pytest.fixture
def run(monkeypatch):
    """A run whose data has not changed, which keeps an average and can leave nothing else out."""
    recipe = SimpleNamespace(evaluation_options=("raw",), verbs={}, data_changed=lambda prepared: None, own=None)
    folder = SimpleNamespace(path="runs/x")
    trained = SimpleNamespace(
        recipe=recipe, folder=folder, prepared="as it was", step=7,
        means=lambda *, average=True: {"loss": 1.0 if average else 2.0, "tokens": 5},
    )  # fmt: skip

    def opened(path, step):
        assert (path, step) == ("runs/x", "best")
        return trained

    monkeypatch.setattr(module, "Trained", opened)
    monkeypatch.setattr(module, "name_of", lambda recipe: "stories")
    return trained


def evaluated(**options):
    return module.evaluate({"run": "runs/x", "step": "best", **options})


def test_the_answer_is_the_means_over_the_held_out_set(run):
    assert evaluated() == {"run": "runs/x", "step": 7, "loss": 1.0, "tokens": 5}


def test_other_data_are_refused(run):
    def changed(prepared):
        raise DataError("not as it was")

    run.recipe.data_changed = changed
    with pytest.raises(DataError, match="not as it was"):
        evaluated()


def test_metrics_of_the_raw_weights_are_numbers_beside_the_others_and_are_not_asked_for_twice(run):
    assert evaluated(raw=True) == {"run": "runs/x", "step": 7, "loss": 1.0, "tokens": 5, "raw": {"loss": 2.0}}
    assert "raw" not in evaluated(raw=False)
    run.means = lambda *, average=True: {"loss": 1.0, "raw": "its own"}
    assert evaluated(raw=True)["raw"] == "its own"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("submission", "--submission writes answers to tasks of ARC, and runs/x has none"),
        ("keep_seen", "--keep-seen is for runs of recommend, and runs/x is one of stories"),
        ("closed_loop", "--closed-loop drives the systems of the recipe control"),
    ],
)
def test_an_option_that_the_recipe_does_not_have_is_refused(run, option, words):
    assert "loss" in evaluated(**{option: False})
    with pytest.raises(RecipeError, match=words):
        evaluated(**{option: True})
    run.recipe.evaluation_options = (option,)
    assert "loss" in evaluated(**{option: True})


def test_a_recipe_answers_for_itself_where_it_says_how(run, monkeypatch):
    run.recipe.verbs = {"evaluate": Verb(answer="somewhere:own")}
    monkeypatch.setattr(module, "resolved", lambda reference: lambda trained, request: {reference: request["step"]})
    assert evaluated() == {"run": "runs/x", "step": 7, "somewhere:own": "best"}


def test_a_fingerprint_is_of_a_run_and_of_nothing_else(monkeypatch):
    read = []
    folder = SimpleNamespace(
        read=read.append,
        checkpoint=lambda step: f"leaves of {step}",
        position=lambda step: SimpleNamespace(loader="at"),
    )
    monkeypatch.setattr(module, "RunFolder", lambda path: folder)
    monkeypatch.setattr(module, "newest_whole", lambda folder: (9, ["a note"]))
    monkeypatch.setattr(module, "read_leaves", lambda checkpoint: checkpoint)
    monkeypatch.setattr(module, "fingerprint", lambda *of: "-".join(of))
    assert module.prove({"run": "runs/x"}) == {
        "run": "runs/x", "step": 9, "fingerprint": "leaves of 9-at", "notes": ["a note"]
    }  # fmt: skip
    assert read == ["recipe.json"]
