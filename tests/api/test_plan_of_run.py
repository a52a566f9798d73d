"""The plan of a run: kept, refused, or made again, and with what."""

import re
from dataclasses import replace

import pytest

from making import made
from plimsoll.api import changes, plan_of_run
from plimsoll.api.plan_of_run import Starting, settle_plan, why_plan_again
from plimsoll.api.planning.place import Place
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import BudgetError, RunError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planner import chips
from plimsoll.recipes.parts import Prepared
from plimsoll.training import overruns
from plimsoll.training.overruns import Overrun
from plimsoll.types import StepOptions
from plimsoll.units import GIB, MIB
from report_examples import PLANNED

RECIPE = made("stories", dataset_id="no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16)
PLACE = Place(chip=chips.chip("cpu"), budget_bytes=GIB)
DATA = Prepared(steps=100, steps_per_epoch=10.0)
OVERRUN = Overrun(
    step=60, what="resident set", budget_bytes=2 * GIB, predicted_bytes=2 * GIB, measured_bytes=2 * GIB + 10 * MIB
)
LEVERS = PLANNED.plan.levers


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that is planned as PLANNED."""
    run = RunFolder(tmp_path / "run")
    run.create()
    run.write("plan.json", PLANNED.to_dict())
    return run


@pytest.fixture
def questions(monkeypatch):
    """Questions that a plan is looked for, and their places; PLANNED answers each, with what is pinned."""
    asked = []

    def find(question, place, data, say):
        asked.append((question, place))
        return replace(PLANNED, plan=replace(PLANNED.plan, pinned=tuple(sorted(question.pins))))

    monkeypatch.setattr(plan_of_run, "find_plan", find)
    monkeypatch.setattr(plan_of_run.disk, "require_room", lambda *_: None)
    monkeypatch.setattr(plan_of_run, "levers_of", lambda path, recipe, pins: dict(LEVERS))
    return asked


def starting(folder, **options):
    recipe = RECIPE.replace(batch_size=PLANNED.plan.effective_batch)
    return Starting(folder=folder, recipe=recipe, options=TrainOptions(**options), say=lambda text: None)


def settled(folder, **options):
    return settle_plan(starting(folder, **options), PLACE, DATA)


def test_a_run_keeps_its_plan_and_its_budget(folder, questions):
    before = (folder.path / "plan.json").read_bytes()
    assert settled(folder) == PLANNED.ledger.budget_bytes
    assert settled(folder, pins={"micro_batch": LEVERS["micro_batch"], "remat": None}) == PLANNED.ledger.budget_bytes
    assert (folder.path / "plan.json").read_bytes() == before
    assert not questions


def test_a_kept_plan_needs_what_its_search_kept_free_too(folder, questions):
    """What the refusal names is enough."""
    planned = replace(PLANNED, ledger=replace(PLANNED.ledger, spare_bytes=24 * MIB))
    folder.write("plan.json", planned.to_dict())
    with pytest.raises(BudgetError, match=r"needs 1560MiB, and --memory allows 1\.5 GiB: add --replan") as refused:
        settled(folder, memory="1559MiB")
    assert refused.value.floor_bytes == settled(folder, memory="1560MiB") == 1560 * MIB


def test_levers_that_are_set_otherwise_than_in_the_plan_are_refused(folder, questions):
    other = 2 * LEVERS["micro_batch"]
    words = f"is planned with --micro-batch {LEVERS['micro_batch']}, and this command says --micro-batch {other}: add"
    with pytest.raises(RunError, match=re.escape(words)):
        settled(folder, pins={"micro_batch": other}, quiet=True)
    (folder.path / changes.PENDING).touch()
    with pytest.raises(RunError, match=re.escape(words)):
        settled(folder, pins={"micro_batch": other})
    assert not questions
    settled(folder, pins={"micro_batch": other}, replan=True)
    assert questions[0][0].pins == {"micro_batch": other}


def test_a_plan_of_a_file_is_kept_where_the_run_has_it_already(folder, questions, monkeypatch):
    settled(folder, plan="a.json")
    monkeypatch.setattr(plan_of_run, "levers_of", lambda path, recipe, pins: {**LEVERS, "prefetch": 7})
    with pytest.raises(RunError, match=r"says --plan a\.json with --prefetch 7: add --replan"):
        settled(folder, plan="a.json")
    assert not questions


def test_the_first_reason_to_plan_again_is_said(folder, monkeypatch):
    def reason(**options):
        return why_plan_again(starting(folder, **options), PLACE, PLANNED)

    assert reason() == ""
    overruns.add(folder, OVERRUN)
    assert reason(keep_plan=True) == ""
    assert reason() == "went over its budget, and gets a margin of 16.0 MiB"
    (folder.path / changes.PENDING).touch()
    assert reason(keep_plan=True) == "has changed"
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    assert "and --mesh says data=2" in reason(mesh="data=2")


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, {"log_norms": "layers"}, "was planned for --log-norms global, and this is --log-norms layers"),
        ({"norms": "layers"}, {}, "was planned for --log-norms layers, and this is --log-norms global"),
        ({}, {"debug_nans": True}, "was planned without --debug-nans, which keeps two copies of the state"),
        ({"donates": False}, {}, "was planned with --debug-nans, which keeps two copies of the state"),
    ],
)
def test_with_another_step_a_run_is_planned_again_and_its_numbers_stay(folder, questions, before, now, words):
    folder.write("plan.json", replace(PLANNED, step_options=StepOptions(**before)).to_dict())
    assert why_plan_again(starting(folder, **now), PLACE, folder.planned()).startswith(words)
    settled(folder, **now)
    ((question, _),) = questions
    assert question.step_options == TrainOptions(**now).step_options
    assert question.memory == PLANNED.ledger.budget_bytes
    assert question.pins["optimizer_bits"] == LEVERS["optimizer_bits"]
    assert "remat" not in question.pins


@pytest.mark.parametrize("options", [{"log_norms": "layers"}, {"debug_nans": True}])
def test_with_the_step_it_was_planned_for_a_run_keeps_its_plan(folder, questions, options):
    step_options = TrainOptions(**options).step_options
    assert step_options == StepOptions(norms=options.get("log_norms", "global"), donates="debug_nans" not in options)
    folder.write("plan.json", replace(PLANNED, step_options=step_options).to_dict())
    assert settled(folder, **options) == PLANNED.ledger.budget_bytes
    assert not questions


@pytest.mark.parametrize("pinned", [(), ("micro_batch", "remat")])
def test_a_run_that_has_changed_keeps_its_levers_and_what_the_user_had_set_of_them(folder, questions, pinned):
    """All of them are kept as if by --plan, which is not what the user set."""
    folder.write("plan.json", replace(PLANNED, plan=replace(PLANNED.plan, pinned=pinned)).to_dict())
    (folder.path / changes.PENDING).touch()
    assert settled(folder) == PLANNED.ledger.budget_bytes
    ((question, _),) = questions
    assert question.pins == LEVERS
    assert not question.measure
    assert question.memory == PLANNED.ledger.budget_bytes
    assert folder.planned().plan.pinned == pinned
    assert not folder.has(changes.PENDING)


def test_on_other_devices_the_numbers_stay_and_other_levers_are_searched(folder, questions, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    settled(folder, mesh="data=2", pins={"prefetch": 1})
    ((question, place),) = questions
    assert place.chip.devices == 2
    assert question.pins["prefetch"] == 1
    assert question.pins["optimizer_bits"] == LEVERS["optimizer_bits"]
    assert "remat" not in question.pins
    assert folder.planned().plan.pinned == ("prefetch",)


def test_a_run_that_went_over_its_budget_gets_a_margin_or_stops(folder, questions, monkeypatch):
    overruns.add(folder, OVERRUN)
    settled(folder)
    assert questions[0][1].reserve_bytes == overruns.margin_bytes([OVERRUN])

    def find(*_):
        raise BudgetError("no plan fits", budget_bytes=1, floor_bytes=2)

    monkeypatch.setattr(plan_of_run, "find_plan", find)
    with pytest.raises(StoppedError, match=r"went over its budget at step 60 \(the resident set"):
        settled(folder)
    new = RunFolder(folder.path.with_name("new"))
    new.create()
    with pytest.raises(BudgetError, match="no plan fits"):
        settled(new)
