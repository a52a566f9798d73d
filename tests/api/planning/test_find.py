"""Planning and the cache, which is held against its limit."""

import os
from types import SimpleNamespace

import pytest

from making import made
from plimsoll.api.plan_of_run import question_of
from plimsoll.api.planning import find
from plimsoll.api.planning.place import Place
from plimsoll.api.planning.question import Question
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import BudgetError, PlimsollError
from plimsoll.planned import Planned
from plimsoll.planner import chips
from plimsoll.types import StepOptions
from plimsoll.units import GIB
from report_examples import PLANNED

RECIPE = made(
    "stories", dataset_id="no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=2
)
QUESTION = Question(recipe=RECIPE, name="stories")
PLACE = Place(chip=chips.chip("cpu"), budget_bytes=GIB)


def refuses(problem, desk):
    raise BudgetError("no plan fits", budget_bytes=1, floor_bytes=None)


def test_the_cache_is_held_against_its_limit_after_a_plan_and_after_a_refusal(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_CACHE_LIMIT", "1.5MiB")
    monkeypatch.setattr(find.search, "find_fastest", refuses)
    (tmp_path / "compiled").mkdir()
    for age, name in enumerate(("jit_f-1-cache", "jit_g-1-cache")):
        (tmp_path / "compiled" / name).write_bytes(bytes(2**20))
        os.utime(tmp_path / "compiled" / name, (10 - age, 10 - age))
    with pytest.raises(BudgetError):
        find.find_plan(QUESTION, PLACE)
    assert os.listdir(tmp_path / "compiled") == ["jit_f-1-cache"]


@pytest.mark.parametrize("options", [{}, {"debug_nans": True}, {"log_norms": "layers"}])
def test_what_the_user_sets_about_a_step_is_in_the_plan_that_trains(options):
    asked = TrainOptions(**options)
    question = question_of(RECIPE, asked, PLACE.chip)
    compiler = SimpleNamespace(static=lambda: SimpleNamespace(state_bytes=2, given_bytes=1))
    planned = find.explained(PLANNED, question, PLACE, compiler)
    assert planned.step_options == StepOptions(
        norms=options.get("log_norms", "global"), donates=not options.get("debug_nans")
    )
    assert Planned.from_dict(planned.to_dict()).step_options == planned.step_options


def test_a_limit_that_is_no_size_is_refused_before_anything_is_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_CACHE_LIMIT", "5 gigs")
    monkeypatch.setattr(find.search, "find_fastest", pytest.fail)
    with pytest.raises(PlimsollError, match="PLIMSOLL_CACHE_LIMIT"):
        find.find_plan(QUESTION, PLACE)
