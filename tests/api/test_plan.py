"""`plimsoll.plan` and the cache: held against its limit after every plan, and a wrong limit is refused before one."""

import os

import pytest

from plimsoll.api import plan as api_plan
from plimsoll.errors import BudgetError, PlimsollError
from plimsoll.recipes.text.recipe import Text

RECIPE = Text(dataset_id="no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=2)


def refuses(problem, compiler, say, **how):
    raise BudgetError("no plan fits", budget_bytes=1, floor_bytes=None)


def test_the_cache_is_held_against_its_limit_after_a_plan_and_after_a_refusal(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_CACHE_LIMIT", "1.5MiB")
    monkeypatch.setattr(api_plan, "search", refuses)
    (tmp_path / "compiled").mkdir()
    for age, name in enumerate(("jit_f-1-cache", "jit_g-1-cache")):
        (tmp_path / "compiled" / name).write_bytes(bytes(2**20))
        os.utime(tmp_path / "compiled" / name, (10 - age, 10 - age))
    with pytest.raises(BudgetError):
        api_plan.plan(RECIPE, chip="cpu", memory="1GiB")
    assert os.listdir(tmp_path / "compiled") == ["jit_f-1-cache"]


def test_a_limit_that_is_no_size_is_refused_before_anything_is_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_CACHE_LIMIT", "5 gigs")
    monkeypatch.setattr(api_plan, "search", pytest.fail)
    with pytest.raises(PlimsollError, match="PLIMSOLL_CACHE_LIMIT"):
        api_plan.plan(RECIPE, chip="cpu", memory="1GiB")
