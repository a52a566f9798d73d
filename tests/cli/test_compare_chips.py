"""`plimsoll plan RECIPE --compare CHIP,CHIP`: a plan for each, or why there is none."""

import json
from dataclasses import replace

import pytest

from plimsoll.api.planning import compare
from plimsoll.cli.main import main
from plimsoll.errors import BudgetError
from plimsoll.units import GIB, MIB
from report_examples import PLANNED


@pytest.fixture
def asked(monkeypatch):
    """What the planner is asked for; nothing fits a T4."""
    questions = []

    def find_plan(question, place, data, say):
        chip = question.chip
        questions.append((chip, question.memory, question.host_memory, dict(question.pins)))
        if chip == "t4":
            raise BudgetError(
                "no plan for stories fits in 14.6 GiB on t4\n  more", budget_bytes=GIB, floor_bytes=2 * GIB
            )
        return replace(PLANNED, plan=replace(PLANNED.plan, chip=chip))

    monkeypatch.setattr(compare, "find_plan", find_plan)
    return questions


def test_each_chip_is_planned_for_with_the_same_levers(asked, capsys):
    words = ["plan", "stories", "--compare", "h200,t4,cpu", "--micro-batch", "4", "--host-memory", "8GiB"]
    assert main([*words, "--price", "h200=3.6"]) == 0
    assert asked == [
        ("h200", None, "8GiB", {"micro_batch": 4}),
        ("t4", None, "8GiB", {"micro_batch": 4}),
        ("cpu", None, None, {"micro_batch": 4}),
    ]
    text = capsys.readouterr().out
    assert "stories-small: 33.6M parameters" in text
    assert "no plan for stories fits in 14.6 GiB on t4" in text
    assert "3.60" in text


def test_json_is_one_object(asked, capsys):
    assert main(["plan", "stories", "--compare", "h200,t4", "--json"]) == 0
    fits, refused = json.loads(capsys.readouterr().out)["compared"]
    assert (fits["fits"], fits["plan"]["plan"]["chip"]) == (True, "h200")
    assert (fits["left_bytes"], fits["tokens_per_second"]) == (512 * MIB, 32_768)
    assert (refused["fits"], refused["floor_bytes"]) == (False, 2 * GIB)
    assert refused["why_not"].startswith("no plan")
    assert main(["plan", "stories", "--compare", "t4"]) == 2  # the table is printed
    assert "no plan for stories fits" in capsys.readouterr().out
