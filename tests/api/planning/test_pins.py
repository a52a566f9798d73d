"""A plan file is read with its types, or refused by what is wrong in it."""

import json

import pytest

from plimsoll.api.planning.pins import read_plan_file
from plimsoll.errors import RecipeError
from report_examples import PLANNED


def test_a_plan_is_read_as_it_was_printed(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(PLANNED.to_dict()))
    assert read_plan_file(str(tmp_path / "plan.json")) == PLANNED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "cannot be read"),
        ("{}", "is not a plan"),
        ("[]", "is not a plan"),
        ('{"fits": false}', "is a refusal"),
        (json.dumps(PLANNED.to_dict() | {"plan": {"of": "tomorrow"}}), "is not a plan, it.plan.chip is missing"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_plan_file(str(path))
