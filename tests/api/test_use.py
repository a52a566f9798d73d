"""One table of uses: the options of a row are the keywords of `Run`, the options that are typed, and the request."""

import dataclasses
import inspect

import pytest

from plimsoll.api import use
from plimsoll.api.run import Run
from plimsoll.cli.verbs import rows_of_run
from plimsoll.errors import RecipeError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict

CALLED = {"export": {"path": "merged"}}
"""Keywords of `Run` that have another name in the row."""


def default_of(field):
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


@pytest.mark.parametrize("name", use.USES)
def test_the_keywords_of_a_run_are_the_options_of_its_row(name):
    keywords = [each for each in inspect.signature(getattr(Run, name)).parameters.values() if each.name != "self"]
    other = CALLED.get(name, {})
    of_run = {other.get(each.name, each.name): each.default for each in keywords}
    assert of_run == {field.name: default_of(field) for field in dataclasses.fields(use.USES[name])}


@pytest.mark.parametrize("name", use.USES)
def test_what_is_typed_is_the_row_with_the_run_and_json(name):
    typed = {option.name for option in rows_of_run(name)}
    assert typed == {"run", "json", *(field.name for field in dataclasses.fields(use.USES[name]))}


def test_a_request_is_the_row_and_the_run(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write("recipe.json", to_dict(preset("stories")))
    monkeypatch.setattr(RunFolder, "require_saved", lambda _: None)
    asked = []
    monkeypatch.setattr(use, "ask", lambda verb, request: asked.append((verb, request)) or {})
    options = use.SampleOptions(prompt="a", tokens=3)
    use.use("sample", str(folder.path), options)
    assert asked == [("sample", {**dataclasses.asdict(options), "run": str(folder.path)})]
    with pytest.raises(RecipeError, match="is a run of stories, which solves no puzzles"):
        use.use("solve", str(folder.path), use.SolveOptions(puzzle="12"))


def test_a_file_that_cannot_be_written_is_refused_before_an_evaluation(tmp_path):
    for place in (tmp_path, tmp_path / "no/such/file.json"):
        with pytest.raises(RecipeError, match=r"--submission .* cannot be written"):
            use.EvaluateOptions(submission=str(place))
