"""`--largest`: the value found is the largest that fits, its successor does not, and little is compiled on the way."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from making import made
from planner_examples import STATIC
from plimsoll.api.planning import find, largest
from plimsoll.api.planning.largest import find_largest
from plimsoll.api.planning.option_values import values_of
from plimsoll.api.planning.place import Place
from plimsoll.api.planning.question import Question
from plimsoll.cli.main import main
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.planned import Ledger
from plimsoll.planner.chips import chip
from plimsoll.recipes.registry import preset
from plimsoll.units import MIB
from report_examples import PLAN, PLANNED

RECIPE = preset("stories")
LEVERS = {"remat": "block", "loss_chunk": 256}
"""Those of the smallest plan."""


class Planner:
    """Plans by a formula: `needed` of a recipe and of its levers, in bytes. A plan takes a second of its clock."""

    def __init__(self, needed, budget, *, levers=LEVERS, fails=lambda recipe: False):
        self.needed, self.budget, self.levers, self.fails = needed, budget, levers, fails
        self.asked = []
        self.now = 0.0

    def smallest(self, question, place, data, say):
        return self.planned(question.recipe, question.pins, smallest=True)

    def fastest(self, question, place, data, say):
        return self.planned(question.recipe, question.pins, smallest=False)

    def planned(self, recipe, pins, *, smallest):
        self.asked.append((recipe, dict(pins), smallest))
        self.now += 1
        if self.fails(recipe):
            raise BudgetError("nothing compiles", budget_bytes=self.budget, floor_bytes=None)
        levers = self.levers(recipe) if callable(self.levers) else self.levers
        plan = PLAN.with_levers(**{**levers, **{name: pins[name] for name in levers if name in pins}})
        free = not set(levers) & set(pins)
        size = (
            self.needed(recipe)
            if free or plan.lever("remat") == levers["remat"]
            else math.ceil(1.2 * self.needed(recipe))
        )
        parts = {"process": size // 2, "step temporaries": size - size // 2}
        ledger = Ledger(budget_bytes=self.budget, components=parts, phase="train")
        return replace(PLANNED, plan=replace(plan, pinned=tuple(sorted(pins))), ledger=ledger)


def found(planner, option="seq_len", recipe=RECIPE, *, pins=None, within=1000.0):
    question = Question(recipe=recipe, name="stories", pins=pins or {}, within=within)
    place = Place(chip=chip("cpu"), budget_bytes=planner.budget)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(largest, "find_smallest", planner.smallest)
        patched.setattr(largest, "find_plan", planner.fastest)
        return find_largest(question, place, option, clock=lambda: planner.now)


def by_length(base, slope, curve=0.0):
    return lambda recipe: round(base + slope * recipe.options["seq_len"] + curve * recipe.options["seq_len"] ** 2)


@given(
    base=st.integers(0, 10**9),
    slope=st.integers(1, 10**6),
    curve=st.sampled_from([0, 1, 50]),
    budget=st.integers(2 * 10**9, 10**11),
)
def test_the_largest_fits_and_the_next_does_not_whatever_the_bytes_are(base, slope, curve, budget):
    needed = by_length(base, slope, curve)
    planner = Planner(needed, budget)
    answer = found(planner).largest_found
    assert answer.value % 128 == 0
    assert needed(RECIPE.replace(seq_len=answer.value)) <= budget < needed(RECIPE.replace(seq_len=answer.value + 128))
    assert (answer.next_value, answer.bounded_by) == (answer.value + 128, "bytes")
    assert answer.next_needed_bytes == needed(RECIPE.replace(seq_len=answer.next_value))
    assert len(planner.asked) <= (20 if curve else 12)


def test_the_next_value_is_planned_with_all_levers_free_and_the_others_with_those_of_the_smallest_plan():
    planner = Planner(by_length(100 * MIB, 2**14), 200 * MIB)
    answer = found(planner, pins={"precision": "float32"})
    for recipe, pins, _ in planner.asked:
        assert pins["precision"] == "float32"
        if recipe.options["seq_len"] == answer.largest_found.next_value:
            last = pins
    assert last == {"precision": "float32"}
    assert any(pins.get("remat") == "block" for _, pins, _ in planner.asked)
    assert answer.plan.pinned == ("precision",)
    assert [each.value for each in answer.largest_found.tried] == [
        recipe.options["seq_len"] for recipe, _, _ in planner.asked
    ]


def test_levers_that_fit_more_beyond_the_limit_are_noticed():
    """From 4,096 tokens on, another smallest plan: with the levers of shorter ones it would need a fifth more."""
    levers = lambda recipe: LEVERS if recipe.options["seq_len"] < 4096 else LEVERS | {"remat": "dots"}  # noqa: E731
    needed = by_length(10 * MIB, 2**14)
    planner = Planner(needed, needed(RECIPE.replace(seq_len=4480)), levers=levers)
    answer = found(planner, recipe=RECIPE.replace(seq_len=2048)).largest_found
    assert (answer.value, answer.bounded_by) == (4480, "bytes")


def test_where_the_models_positions_end_it_is_said_and_the_fastest_plan_is_taken():
    recipe = made("finetune", pretrained="google/gemma-2-2b")
    planner = Planner(by_length(10**9, 1), 20 * 10**9)
    planned = found(planner, recipe=recipe)
    assert (planned.largest_found.value, planned.largest_found.next_value, planned.largest_found.bounded_by) == (
        8192,
        None,
        "option",
    )
    assert (
        "the tokens that google/gemma-2-2b was made to read at once, and not the bytes" in planned.largest_found.reason
    )
    assert planner.asked[-1] == (recipe.replace(seq_len=8192), {}, False)


def test_a_rank_ends_at_the_narrowest_side_of_the_kernels():
    recipe = made("finetune", pretrained="meta-llama/Llama-3.1-8B", lora_targets="q,k")
    assert values_of(recipe, "lora-rank").rising[-1] == 1024
    planner = Planner(lambda recipe: 10**9 * (3 + recipe.options["lora_rank"]), 20 * 10**9)
    answer = found(planner, "lora_rank", recipe).largest_found
    assert (answer.option, answer.value, answer.next_value) == ("lora-rank", 17, 18)


def test_a_batch_goes_through_at_once():
    planner = Planner(lambda recipe: MIB * (100 + 7 * recipe.length.batch_size), 200 * MIB)
    planned = found(planner, "batch_size")
    assert planned.largest_found.value == 14
    assert all(pins["micro_batch"] == recipe.length.batch_size for recipe, pins, _ in planner.asked)
    assert "15 at once would need 205.0 MiB" in planned.largest_found.reason
    with pytest.raises(RecipeError, match=r"and --micro-batch 2 splits it: leave --micro-batch out"):
        found(planner, "batch_size", pins={"micro_batch": 2})
    assert values_of(RECIPE, "batch-size", devices=8).rising[0] == 8


def test_parameters_are_numbers_of_two_digits():
    planner = Planner(lambda recipe: 16 * recipe.options["target_params"], 500 * 10**6)
    answer = found(planner, "target_params").largest_found
    assert (answer.value, answer.next_value) == (31_000_000, 32_000_000)


@pytest.mark.parametrize("option", ["seq_len", "batch_size", "target_params", "lora_rank"])
def test_the_values_of_an_option_grow_and_each_has_its_number(option):
    values = values_of(made("finetune", pretrained="google/gemma-2-2b") if option == "lora_rank" else RECIPE, option)
    for number in (0, 1, 89, 90, 400, len(values.rising) - 1):
        number = min(number, len(values.rising) - 1)
        assert values.number(values.rising[number]) == values.number(values.rising[number] + 0.5) == number
        assert number == 0 or values.rising[number - 1] < values.rising[number]
    assert values.number(0) == 0


def test_where_not_even_the_least_fits_the_floor_is_said():
    planner = Planner(by_length(300 * MIB, 2**14), 200 * MIB)
    with pytest.raises(
        BudgetError, match=r"no --seq-len fits in 200\.0 MiB: the least that is tried is 128"
    ) as refusal:
        found(planner)
    assert refusal.value.floor_bytes == 302 * MIB
    assert "its smallest plan needs 302MiB" in str(refusal.value)


def test_by_the_time_that_is_given_the_largest_that_is_known_is_taken():
    planner = Planner(by_length(10**9, 70_000, 3), 24 * 10**9)
    planned = found(planner, within=2.5)
    assert len(planner.asked) == 3
    assert planned.largest_found.bounded_by == "time"
    assert planned.ledger.fits
    assert "within the time limit of planning" in planned.largest_found.reason


def test_what_the_recipe_refuses_bounds_it_too():
    planner = Planner(lambda recipe: 1, 10, fails=lambda recipe: recipe.options["seq_len"] > 1000)
    answer = found(planner).largest_found
    assert (answer.value, answer.bounded_by) == (896, "recipe")
    code = preset("code")  # which says its shape
    with pytest.raises(RecipeError, match=r"--target-params .* beside a shape"):
        found(planner, "target_params", code)
    with pytest.raises(RecipeError, match=r"--largest lora-rank: .* it has target-params, batch-size, seq-len"):
        values_of(RECIPE, "lora-rank")


def test_the_command_prints_it_and_json_has_it_as_a_number(monkeypatch, capsys):
    planner = Planner(by_length(100 * MIB, 2**14), 200 * MIB)

    def looked_for(*, smallest):
        def plan_of(problem, desk):
            assert not desk.deadline.is_patient  # of all plans together the caller says how long they may take
            return planner.planned(RECIPE.replace(seq_len=problem.rate_per_example), problem.pins, smallest=smallest)

        return plan_of

    monkeypatch.setattr(find.search, "find_fastest", looked_for(smallest=False))
    monkeypatch.setattr(find.search, "find_smallest", looked_for(smallest=True))
    monkeypatch.setattr(find.SpokenPool, "static", lambda self: STATIC)
    words = ["plan", "stories", "--chip", "cpu", "--memory", "200MiB", "--largest", "seq-len"]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["largest"] == 6400
    assert (answer["fits"], answer["largest_search"]["next_value"]) == (True, 6528)
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "largest seq-len" in text
    assert "--seq-len 6,400" in text
    assert "6,400 0.195 GiB" in " ".join(text.split())
    assert "6,528 0.197 GiB" in " ".join(text.split())
    assert [each["per_second"] for each in answer["largest_search"]["tried"]][-1] == 32_768


def test_its_time_is_its_own():
    assert all(largest.WITHIN[platform] > seconds for platform, seconds in find.WITHIN.items())
