"""`--hours H --best-size`: the size with the lowest predicted loss, its steps, and few plans on the way to it."""

import json
import math
import os
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plimsoll
from plimsoll.api import plan as api_plan
from plimsoll.api import planning
from plimsoll.api import train as api_train
from plimsoll.api.best_size import MOST_PLANS, find_best_size
from plimsoll.api.earlier_runs import earlier_runs
from plimsoll.api.hours import reserved_seconds, steps_in
from plimsoll.api.loss_law import LossLaw, Observed, effective_tokens
from plimsoll.cli.main import main
from plimsoll.engine.options import TrainOptions
from plimsoll.errors import BudgetError, RecipeError, RunError
from plimsoll.planned import Ledger
from plimsoll.recipes.registry import preset
from plimsoll.recipes.saved import to_dict
from plimsoll.recipes.text.recipe import Text
from plimsoll.report.tables import plan_table
from plimsoll.runs.folder import RunFolder
from plimsoll.units import GIB, MIB
from report_examples import PLANNED


@dataclass(frozen=True, kw_only=True)
class OfAnySize(Text):
    """A recipe that has every size, and finds it at once."""

    shape = property(lambda self: SimpleNamespace(parameters=lambda: self.target_params))


RECIPE = OfAnySize(dataset_id="org/a-stream-that-is-not-read", vocab_size=512)
"""Its tokens are not counted, so none is read twice."""
TEXT = preset("stories", **{name: getattr(RECIPE, name) for name in ("dataset_id", "vocab_size")})
A_STEP = 32 * 128


class Planner:
    """Plans by formula: a step takes 6 floating-point operations for each parameter and token, and a constant."""

    def __init__(self, flops, *, start=0.0, bytes_each=16, budget=GIB):
        self.flops, self.start, self.bytes_each, self.budget = flops, start, bytes_each, budget
        self.asked = []

    def seconds(self, size):
        return self.start + 6 * size * A_STEP / self.flops

    def __call__(self, recipe):
        self.asked.append(recipe)
        size = recipe.shape.parameters()
        needed = 100 * MIB + self.bytes_each * size
        if needed > self.budget:
            raise BudgetError(f"needs {needed} bytes", budget_bytes=self.budget, floor_bytes=needed)
        ledger = Ledger(budget_bytes=self.budget, predicted={"all": needed}, phase="train")
        facts = {"ledger": ledger, "parameters": size, "step_seconds": self.seconds(size), "tokens_per_step": A_STEP}
        return replace(PLANNED, **facts, step_seconds_source="measured")


def best(planner, hours, *, law=None, data=None, recipe=RECIPE):
    """The lowest size of a fine grid by brute force, with its loss."""
    law = law or LossLaw()
    found = []
    for size in (recipe.target_params * 1.05**power for power in range(-80, 160)):
        if 100 * MIB + planner.bytes_each * size > planner.budget:
            continue
        how = {"step_seconds": planner.seconds(size), "tokens_per_step": A_STEP, "held_out": recipe.held_out_tokens}
        tokens = effective_tokens(steps_in(3600 * hours, **how) * A_STEP, data)
        if tokens:
            found.append((law.loss(size, tokens), size))
    return min(found)


@given(power=st.floats(9.5, 13), start=st.sampled_from([0.0, 0.02, 0.5]), hours=st.sampled_from([0.5, 6.0, 100.0]))
def test_the_size_found_is_as_good_as_the_best_of_a_fine_grid(power, start, hours):
    planner = Planner(10**power, start=start, budget=10**15)
    planned = find_best_size(RECIPE, planner, hours=hours)
    loss, size = best(planner, hours)
    found = planned.best_size_found
    chosen = next(each for each in found.tried if each.target_params == found.fields["target_params"])
    assert chosen.loss == pytest.approx(loss, rel=0.01), (size, found)
    assert chosen.loss == min(each.loss or math.inf for each in found.tried)
    assert len(planner.asked) <= MOST_PLANS
    assert found.fields["steps"] == chosen.steps
    assert found.likely_sizes[0] <= chosen.target_params <= found.likely_sizes[1]


def test_golden_the_steps_are_what_the_hours_leave():
    """An hour at 10 steps/s and 40,960 tokens/s: 180 s for start and saves, 4 evaluations of 1M tokens at three times
    that rate are 32.6 s, and 3,387.4 s of steps are left."""
    step = {"step_seconds": 0.1, "tokens_per_step": 4096}
    assert reserved_seconds(3600, tokens_per_second=40960, held_out=1e6) == pytest.approx(180 + 32.55, abs=0.01)
    assert steps_in(3600, **step, held_out=1e6) == 33_874
    assert steps_in(60, **step, held_out=0) == 500
    assert steps_in(5, **step, held_out=0) == 0


def test_a_size_that_does_not_fit_is_not_chosen_and_the_budget_is_named():
    planner = Planner(1e12, budget=100 * MIB + 16 * 3_000_000)
    planned = find_best_size(RECIPE, planner, hours=6)
    found = planned.best_size_found
    assert 2_500_000 <= found.fields["target_params"] <= 3_050_000
    assert any("the budget bounds it" in note for note in found.notes)
    assert any("does not fit" in line for line in plan_table(planned).splitlines())
    assert best(replace_budget(planner, 10**15), 6)[1] > 5_000_000


def replace_budget(planner, budget):
    return Planner(planner.flops, budget=budget)


def test_a_loss_above_that_of_guessing_is_said_to_be_none():
    notes = find_best_size(RECIPE, Planner(1e9), hours=1).best_size_found.notes
    assert any(
        note.startswith("guessing among 512 tokens has a loss of 6.24, and the law predicts more") for note in notes
    )
    assert not any("guessing" in note for note in find_best_size(RECIPE, Planner(1e15), hours=6).best_size_found.notes)


def test_no_size_fits():
    planner = Planner(1e12, budget=100 * MIB)
    with pytest.raises(BudgetError, match="no size fits: the smallest that was tried is --target-params") as refusal:
        find_best_size(RECIPE, planner, hours=6)
    assert refusal.value.floor_bytes > refusal.value.budget_bytes == 100 * MIB


def test_all_sizes_have_the_tokenizer_of_the_first_guess():
    """From 20M parameters on the default vocabulary is another: losses per token could not be compared."""
    recipe = replace(RECIPE, vocab_size=None)
    planner = Planner(3e13, budget=10**15)
    found = find_best_size(recipe, planner, hours=6).best_size_found
    assert found.fields["target_params"] > 20_000_000
    assert found.fields["vocab_size"] == 32_768
    assert {each.vocab for each in planner.asked[1:]} == {32_768}
    assert all(each.target_params > 1_000_000 for each in found.tried)


def test_tokens_that_are_read_again_make_larger_models_better(monkeypatch):
    planner = Planner(1e11, budget=10**15)
    fresh = find_best_size(RECIPE, planner, hours=6).best_size_found
    monkeypatch.setattr(type(RECIPE), "data_tokens", 1e6)
    again = find_best_size(RECIPE, planner, hours=6).best_size_found
    assert again.fields["target_params"] > 2 * fresh.fields["target_params"]
    assert any("epochs of about 1M tokens" in note for note in again.notes)
    assert any("is not known" in note for note in fresh.notes)


def test_earlier_runs_change_the_choice_and_are_named():
    truth = LossLaw((-0.4, -0.7, 0.6, 0.0, 0.0))  # size matters more than the prior says
    places = [(5e5, 1e7), (1e6, 5e6), (2e6, 1e8), (4e6, 1e7)]
    runs = [Observed(size, tokens, truth.loss(size, tokens), run=f"runs/{size:g}") for size, tokens in places]
    planner = Planner(1e11, budget=10**15)
    before = find_best_size(RECIPE, planner, hours=6)
    after = find_best_size(RECIPE, planner, hours=6, earlier=lambda recipe: runs)
    size = best(planner, 6, law=truth)[1]
    apart = [abs(math.log(each.best_size_found.fields["target_params"] / size)) for each in (before, after)]
    assert apart[1] < apart[0] / 2
    assert after.best_size_found.runs == tuple(run.run for run in runs)
    assert "corrected by runs/500000, runs/1e+06" in plan_table(after)
    assert "no finished run of this recipe corrects it" in plan_table(before)


def test_the_table_marks_the_choice_and_gives_the_options_to_type():
    planned = find_best_size(RECIPE, Planner(1e11), hours=6)
    lines = plan_table(planned).splitlines()
    assert lines[0] == "size with the lowest predicted loss after 6.0 h (nats per token)"
    assert [line.split()[0] for line in lines if line.startswith("*")] == ["*"]
    steps, size = (planned.best_size_found.fields[name] for name in ("steps", "target_params"))
    assert f"chosen              --target-params {size} --vocab-size 512 --steps {steps}" in "\n".join(lines)
    assert json.loads(json.dumps(planned.to_dict()))["best_size"]["fields"]["steps"] == steps


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hours", "0"], "--hours must be from 0.0056 (20 seconds) to 8,784 (a year), got 0"),
        (["--hours", "-1"], "got -1"),
        (["--hours", "nan"], "got nan"),
        ([], "none is given: add --hours"),
        (["--hours", "6", "--no-best-size"], "add --best-size, or leave --hours out"),
        (["--hours", "6", "--target-params", "5M"], "and --target-params 5M says that already"),
        (["--hours", "6", "--width", "64", "--layers=2"], "and --width 64 and --layers 2 say that already"),
        (["--hours", "6", "--epochs", "2"], "and --epochs 2 says that already"),
        (["--hours", "6", "--steps", "100"], "and --steps 100 says that already"),
        (["--hours", "six"], "--hours takes a number, got 'six'"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_bad_input_is_refused_in_one_paragraph(command, words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    best_size = [] if "--no-best-size" in words else ["--best-size"]
    assert main([command, "stories", "--memory", "1GiB", *best_size, *words]) == 2
    refusal = capsys.readouterr().err.strip()
    assert said in refusal
    assert "\n" not in refusal


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_budget_and_a_recipe_with_sizes_are_needed(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([command, "stories", "--hours", "6", "--best-size"]) == 2
    assert "add --memory, like --memory 8GiB" in capsys.readouterr().err
    assert main([command, "sudoku", "--hours", "6", "--best-size", "--memory", "1GiB", "--chip", "cpu"]) == 2
    assert "this recipe has no such option" in capsys.readouterr().err


def test_another_kind_of_plan_beside_it_is_refused(capsys):
    words = ["plan", "stories", "--memory", "1GiB", "--hours", "6", "--best-size"]
    for other in (["--compare", "h200"], ["--settings"], ["--frontier"]):
        assert main([*words, *other]) == 2
        assert f"{other[0]} asks for something else" in capsys.readouterr().err
    for other in (["--floor"], ["--largest", "seq-len"]):
        assert main([*words, *other]) == 2
        assert "--floor and --largest for something else: give one of them" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="give one of them"):
        plimsoll.plan("stories", memory="1GiB", hours=6, best_size=True, largest="seq_len")
    with pytest.raises(RecipeError, match="--target-params 5M says that already"):
        plimsoll.plan("stories", memory="1GiB", hours=6, best_size=True, target_params="5M")
    with pytest.raises(RecipeError, match="--width 64 and --layers 2 and --heads 2 say that already"):
        plimsoll.train("stories", memory="1GiB", hours=6, best_size=True, width=64, layers=2, heads=2)


@pytest.fixture
def planner(monkeypatch):
    """Plans by formula in the place of the search; the rest of `api.plan.plan` is real."""
    made = Planner(1e11)

    def search(problem, compiler, say, **how):
        made.timed = problem.measure
        return made(made.recipe)

    def problem(described, *arguments, **requested):
        made.recipe = described
        return original(described, *arguments, **requested)

    original = api_plan._problem
    monkeypatch.setattr(api_plan, "_problem", problem)
    monkeypatch.setattr(api_plan, "search", search)
    monkeypatch.setattr(api_plan.disk, "require_room", lambda folder, needed: None)
    monkeypatch.setattr(api_plan.Pool, "static", lambda self: type("Static", (), {"state_bytes": 0, "given_bytes": 0}))
    return made


def test_the_command_plans_sizes_that_are_timed_and_gives_up_the_presets_shape(planner, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "code", "--memory", "1GiB", "--chip", "cpu", "--hours", "0.5", "--best-size"]
    assert main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)["best_size"]
    assert "--width 128, --layers 4 and --heads 4 give way to --target-params" in printed.err
    assert planner.timed
    assert answer["fields"].keys() == {"target_params", "vocab_size", "steps"}
    assert {each.width for each in planner.asked} == {None}
    assert {(each.steps, each.learning_rate) for each in planner.asked} == {(None, 4e-3)}


def test_in_python_the_plan_is_of_the_recipe_in_that_size(planner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plimsoll.plan("code", memory="1GiB", chip="cpu", hours=0.5, best_size=True)
    found = plan.best_size_found
    assert isinstance(plan, planning.RecipePlan)
    assert (plan.of.target_params, plan.of.steps, plan.of.width) == (
        found.fields["target_params"],
        found.fields["steps"],
        None,
    )
    assert "hours" not in plan.options
    assert repr(plan).startswith("size with the lowest predicted loss")


def test_training_takes_the_size_and_the_same_command_keeps_it(planner, tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("a few words\n\n" * 40_000)
    recipe = preset("stories", dataset_id=str(text), vocab_size=300)
    options = TrainOptions(memory="1GiB", chip="cpu", run=str(tmp_path / "runs/one"), hours=0.5, best_size=True)
    said = []
    one = begun(recipe, options, said)
    assert one.steps > 100
    assert one.target_params != recipe.target_params
    assert any("size with the lowest predicted loss" in text for text in said)
    asked = len(planner.asked)
    planner.flops = 1e13  # faster today: another size would be found
    RunFolder(options.run).write("plan.json", {})
    assert begun(recipe, options, said) == one
    assert len(planner.asked) == asked
    assert "goes on with the size that it began with: --target-params" in said[-1]
    with pytest.raises(RunError, match=r"began with --hours 0.5, and --hours 3 would look for another"):
        begun(recipe, replace(options, hours=3.0), said)


def begun(recipe, options, said):
    folder = RunFolder(options.run)
    folder.create()
    chip = api_train.accelerator.chip_named("cpu")
    return api_train._of_best_size(folder, recipe, options, chip, said.append, 1)


def test_a_run_with_a_size_that_was_given_keeps_it(tmp_path):
    folder = RunFolder(tmp_path / "runs/one")
    folder.create()
    folder.write("plan.json", {})
    options = TrainOptions(memory="1GiB", chip="cpu", run=str(folder.path), hours=0.5, best_size=True)
    with pytest.raises(RunError, match="began with a size that was given"):
        begun(RECIPE, options, [])
    with pytest.raises(RecipeError, match="find it with `plimsoll plan`"):
        begun(RECIPE, replace(options, plan="plan.json"), [])


def write_run(place, recipe, *, loss=3.0, steps=200, saved=True, facts=None, parameters=1_000_000):
    folder = RunFolder(place)
    folder.create()
    folder.write("recipe.json", to_dict(recipe))
    folder.write("data.json", {"steps": steps, "steps_per_epoch": None, "facts": facts or {}})
    folder.write("plan.json", {"parameters": parameters})
    rows = [{"step": 100, "validation_loss": 9.0}, {"step": 200, "loss": 1.0}, {"step": 200, "validation_loss": loss}]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if saved:
        (folder.checkpoints / f"step-{steps:08}").mkdir()


def test_runs_that_differ_in_size_length_and_seed_alone_are_compared(tmp_path):
    write_run(tmp_path / "a", replace(TEXT, target_params=2_000_000, steps=200), parameters=2_013_000)
    write_run(tmp_path / "below/b", replace(TEXT, width=64, layers=2, heads=2, seed=1, epochs=2), loss=2.5)
    write_run(tmp_path / "c", TEXT, facts={"tokens": A_STEP * 50})
    for name, other in {
        "rate": replace(TEXT, learning_rate=1e-3),
        "text": replace(TEXT, dataset_id="org/other"),
        "vocabulary": replace(TEXT, vocab_size=600),
        "windows": replace(TEXT, seq_len=64),
        "kind": preset("sudoku"),
    }.items():
        write_run(tmp_path / name, other)
    write_run(tmp_path / "unfinished", TEXT, saved=False)
    write_run(tmp_path / "extended", TEXT, facts={"extended": [{}]})
    write_run(tmp_path / "damaged", TEXT)
    (tmp_path / "damaged/data.json").write_text("{")
    tokens = 200 * A_STEP
    assert earlier_runs(tmp_path, TEXT) == [
        Observed(2_013_000, tokens, 3.0, run=str(tmp_path / "a")),
        Observed(1_000_000, tokens, 2.5, run=str(tmp_path / "below/b")),
        Observed(1_000_000, effective_tokens(tokens, tokens / 4), 3.0, run=str(tmp_path / "c")),
    ]
    assert earlier_runs(tmp_path / "absent", TEXT) == []


def test_the_whole_run_is_prepared_in_that_size_and_again(planner, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{number} words of a document that is like no other\n\n" for number in range(9_000)))
    recipe = preset("stories", dataset_id=str(text), vocab_size=300)
    options = TrainOptions(memory="1GiB", chip="cpu", run=str(tmp_path / "runs/one"), hours=0.5, best_size=True)
    sessions = []
    for _ in range(2):
        ready = api_train.prepare_run(recipe, options, lambda text: None)
        os.close(ready.lock)
        sessions.append((RunFolder(options.run).read("recipe.json"), RunFolder(options.run).read("data.json")))
    found = RunFolder(options.run).read("best-size.json")["fields"]
    assert sessions[0] == sessions[1]
    assert sessions[0][1]["steps"] == found["steps"]
    assert {name: sessions[0][0]["fields"][name] for name in found} == found


def test_hours_that_are_no_number_are_refused():
    with pytest.raises(plimsoll.RecipeError, match="--hours must be a number of hours, got 'six'"):
        plimsoll.plan("code", memory="1GiB", hours="six", best_size=True)
