"""`plimsoll plan RECIPE --settings`: a plan for each of the guide's machines, or why there is none."""

import json
from dataclasses import replace

import pytest

from plimsoll.api import compare
from plimsoll.cli.main import main
from plimsoll.errors import RecipeError
from plimsoll.planned import Ledger, Plan, Planned
from plimsoll.units import GIB, MIB

PLAN = Plan(
    chip="cpu", micro_batch=4, accumulation=8, remat="dots", loss_chunk=256, precision="bfloat16", prefetch=2,
    async_save=False,
)  # fmt: skip
PLANNED = Planned(
    plan=PLAN, ledger=Ledger(budget_bytes=GIB, predicted={"process": 700 * MIB}, phase="train"), recipe="stories",
    parameters=10_000_000, step_seconds=1.5, step_seconds_source="roofline", step_flops=1.0, chip_flops=1.0,
    tokens_per_step=4096, examples_per_step=32, compiles=1, devices=1, reason="",
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """What the planner is asked for; it knows the CPU only."""
    questions = []

    def plan(recipe, *, memory, chip, **_):
        questions.append((chip, memory))
        if chip != "cpu":
            raise RecipeError(f"there is no chip called {chip!r} yet\n  more of it")
        return replace(PLANNED, ledger=replace(PLANNED.ledger, budget_bytes=memory))

    monkeypatch.setattr(compare, "plan", plan)
    return questions


def test_each_machine_is_planned_for_less_what_is_left_to_others(asked, capsys):
    assert main(["plan", "stories", "--target-params", "10M", "--settings"]) == 0
    assert [chip for chip, _ in asked] == ["cpu", "cpu", "cpu", "tpu-v5e-8"]
    assert [memory for _, memory in asked] == [8 * GIB - 8 * GIB // 10, 12 * GIB - 12 * GIB // 10, 30 * GIB, None]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "stories: 10M parameters, effective batch 32 on every machine"
    assert lines[3].split("  ")[0] == "8 GiB, CPU"
    for words in ("7.2 GiB", "4 x 8", "dots", "256", "bfloat16", "700.0 MiB", "1.5 s"):
        assert words in lines[3]
    assert lines[-1] == "tpu-v5e-8: there is no chip called 'tpu-v5e-8' yet"


def test_as_json_every_machine_has_its_plan_or_the_reason(asked, capsys):
    assert main(["plan", "stories", "--settings", "--json"]) == 0
    *found, missing = json.loads(capsys.readouterr().out)
    assert [one["plan"]["plan"]["micro_batch"] for one in found] == [4, 4, 4]
    assert missing["plan"] is None
    assert "no chip called" in missing["why_not"]
