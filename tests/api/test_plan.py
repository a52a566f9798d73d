"""The plan of a loss of one's own: what can be asked of it, its step for one's own loop, and training by it."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import plimsoll
from commands import workers_here
from once import made_once
from own_functions import BATCH, data, init, loss, mean, shapes
from plimsoll.api import follow
from plimsoll.api import plan as module
from plimsoll.api.planning import compare
from plimsoll.api.planning.pins import require_levers
from plimsoll.errors import DataError, PlimsollError, RecipeError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Largest
from plimsoll.processes.handover import Ready
from plimsoll.recipes.own.functions import given
from plimsoll.recipes.recipe import Pinned
from small_runs import newest_fingerprint

ROOT = Path(__file__).resolve().parents[2]
PINS = {"micro_batch": 2, "remat": "none", "precision": "float32", "prefetch": 0, "async_save": False}
"""Levers, so that one step is compiled."""
LARGEST = Largest(
    option="seq-len", value=2048, next_value=2176, next_needed_bytes=None, bounded_by="time", reason="the time is over"
)


@pytest.fixture(scope="module")
def plan():
    return plimsoll.plan(
        loss, *shapes(), optimizer=optax.adamw(1e-2), memory="1GiB", chip="cpu", pins=PINS, name="mine"
    )


def test_its_attributes_are_those_of_its_ledger(plan):
    assert plan.fits
    assert plan.peak_bytes == plan.ledger.predicted_peak_bytes <= 2**30
    assert (plan.levers["micro_batch"], plan.plan.accumulation) == (2, 4)
    assert plan.step_seconds > 0
    assert repr(plan).startswith("plan for mine on cpu: ")


def test_its_step_learns_what_a_step_without_it_learns(plan):
    """Four micro-batches of two, beside optax on the whole batch."""
    state, step, optimizer = plan.start(init, seed=7), plan.step, optax.adamw(1e-2)
    params = jax.tree.map(np.array, plan.params(state))
    moments = optimizer.init(params)
    points, values = data()
    for first in range(0, 24, BATCH):
        batch = points[first : first + BATCH], values[first : first + BATCH]
        expected, gradient = jax.value_and_grad(mean)(params, batch)
        updates, moments = optimizer.update(gradient, moments, params)
        params = optax.apply_updates(params, updates)
        state, metrics = step(state, batch)
        np.testing.assert_allclose([metrics["loss"], metrics["largest"]], [expected] * 2, rtol=1e-5)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4), plan.params(state), params)


def test_a_batch_of_another_shape_is_refused_and_the_state_is_kept(plan):
    state = plan.start(init)
    with pytest.raises(
        DataError, match=r"0 of the batch of this step is float32\[4, 3\], and the plan is of float32\[8"
    ):
        plan.step(state, tuple(leaf[:4] for leaf in data()))
    with pytest.raises(DataError, match="and the batch that was planned for"):
        plan.step(state, {"points": data()[0][:BATCH]})
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_a_state_that_an_earlier_step_has_taken_or_that_is_none_is_refused(plan):
    batch = tuple(leaf[:BATCH] for leaf in data())
    state = plan.start(init)
    with pytest.raises(RecipeError, match=r"no state of the plan but a dict.*plan\.start\(lambda key: params\)"):
        plan.step(plan.params(state), batch)
    after, _ = plan.step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state["params"]))
    for use in (lambda: plan.step(state, batch), lambda: plan.params(state)):
        with pytest.raises(RecipeError, match=r"earlier step has taken this state.*state, metrics = step") as refusal:
            use()
        assert "\n" not in str(refusal.value)
    assert int(plan.step(after, batch)[0]["step"]) == 2


def test_a_loop_may_begin_with_the_weights_of_another(plan):
    first = plan.params(plan.start(init, seed=3))
    again = plan.params(plan.start(lambda key: first))
    jax.tree.map(np.testing.assert_array_equal, again, first)


def test_train_needs_data_and_for_patience_something_to_evaluate_on(plan):
    with pytest.raises(DataError, match="train needs examples, and data is None"):
        plan.train(init, None, steps=3)
    with pytest.raises(RecipeError, match="there is nothing to evaluate on: give validation_data="):
        plan.train(init, data(), steps=3, patience=2)


def test_the_length_may_be_given_in_epochs_and_no_name_is_the_default_folder(plan, monkeypatch):
    monkeypatch.setattr(module, "ask_worker", lambda verb, question: {})
    monkeypatch.setattr(module.runs, "train", lambda recipe, **options: (recipe, options["run"]))
    recipe, run = plan.train(init, data(), epochs=2, run="")
    assert (recipe.length.epochs, recipe.length.steps, run) == (2, None, "runs/mine")
    with pytest.raises(RecipeError, match="nothing says how long to train: give train steps=, or epochs="):
        plan.train(init, data())


@pytest.mark.parametrize(("code", "kind"), [(3, StoppedError), (2, PlimsollError)])
def test_training_that_stopped_itself_raises_stopped_error(tmp_path, monkeypatch, code, kind):
    ready = Ready(["train"], {}, os.open(tmp_path, os.O_RDONLY))
    monkeypatch.setattr(follow, "prepare_run", lambda *_: ready)
    monkeypatch.setattr(follow.supervise, "watched", lambda *_, **__: (code, None))
    with pytest.raises(PlimsollError, match=f"ended with code {code}") as raised:
        plimsoll.train("code", run=tmp_path)
    assert type(raised.value) is kind


def test_where_there_is_no_step_the_reason_is_said(plan):
    """On another chip, with 64-bit numbers, and of an AdamW that does not know how long its schedule is."""
    elsewhere = replace(plan, planned=replace(plan.planned, plan=replace(plan.plan, chip="h100")))
    with pytest.raises(RecipeError, match="this plan is for h100, and JAX runs on cpu in this process"):
        elsewhere.start(init)
    with jax.enable_x64(True), pytest.raises(RecipeError, match="leave jax_enable_x64 off where start and step"):
        replace(plan).start(init)
    of_adamw = replace(plan.given, optimizer=plimsoll.AdamW(learning_rate=1e-3))
    with pytest.raises(RecipeError, match=r"say how long it is, plimsoll\.plan\(\.\.\., steps=1000\)"):
        replace(plan, given=of_adamw, question=replace(plan.question, recipe=of_adamw.recipe())).start(init)


def test_adamw_keeps_its_state_in_eight_bits(plan):
    def wide(key):
        return {"hidden": jax.random.normal(key, (3, 4096)), "out": np.full(4096, 1e-3, np.float32)}

    adamw, params = plimsoll.AdamW(learning_rate=1e-3, warmup_steps=1), jax.eval_shape(wide, jax.random.key(0))
    functions = given(loss, params, shapes()[1], optimizer=adamw, reduction="sum", steps=20)
    narrow = plan.plan.with_levers(optimizer_bits=8)
    question = replace(plan.question, recipe=functions.recipe())
    narrow = replace(plan, planned=replace(plan.planned, plan=narrow), given=functions, question=question)
    state, batch = narrow.start(wide), tuple(leaf[:BATCH] for leaf in data())
    assert "uint8" in {leaf.dtype.name for leaf in jax.tree.leaves(state["optimizer"])}
    losses = []
    for _ in range(10):
        state, metrics = narrow.step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]


def test_what_is_no_loss_is_refused():
    with pytest.raises(RecipeError, match="takes a recipe, a name, or a loss function, got a int"):
        plimsoll.plan(3)
    with pytest.raises(RecipeError, match="batch belong to a loss of your own"):
        plimsoll.plan("stories", batch=shapes()[1])
    with pytest.raises(RecipeError, match=r"plimsoll\.plan of a loss has no option stepps: did you mean steps\?$"):
        plimsoll.plan(loss, *shapes(), optimizer=optax.sgd(0.1), stepps=3)
    with pytest.raises(RecipeError, match=r"takes levers together: pins={'micro_batch': 3}"):
        plimsoll.plan(loss, *shapes(), optimizer=optax.sgd(0.1), micro_batch=3)


def test_a_misspelt_option_of_a_further_question_is_suggested(plan):
    with pytest.raises(RecipeError, match=r"a plan's largest has no option withn: did you mean within\?$"):
        plan.largest("batch_size", withn="9s")
    with pytest.raises(RecipeError, match=r"a plan's compare has no option prise: did you mean prices\?$"):
        plan.compare("rtx4090", prise={})


@pytest.mark.parametrize("call", [plimsoll.plan, plimsoll.train])
def test_pins_that_are_none_are_refused_with_what_was_meant(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for pins, words in (
        ({"micro_bach": 8}, r"none called micro_bach: did you mean micro_batch\?$"),
        ({"micro_batch": [8]}, r"^--micro-batch cannot be \[8\]: it takes a whole number \(int\), 1 or more$"),
        ("micro_batch", r'pins are levers by name, like {"micro_batch": 8}, got a str'),
    ):
        with pytest.raises(RecipeError, match=words):
            call("code", chip="cpu", memory="1GiB", pins=pins)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", LEVERS)
def test_a_pin_of_a_wrong_type_is_refused_with_what_it_takes(name):
    given = ["x", "8", [8], {}, 2.5, -1, True, np.zeros(3)]
    for value in [each for each in given if not LEVERS[name].allows(each)]:
        words = rf"{re.escape(repr(value))}: it takes (one of .+|a whole number \(int\), \d or more)$"
        with pytest.raises(RecipeError, match=rf"^{LEVERS[name].flag} cannot be {words}"):
            require_levers({name: value})


def test_it_is_compared_with_other_chips(plan, monkeypatch):
    asked = []

    def find_plan(question, place, data, say):
        asked.append((question, place))
        return replace(plan.planned, plan=replace(plan.plan, chip=question.chip))

    monkeypatch.setattr(compare, "find_plan", find_plan)
    comparison = plan.compare("rtx4090", memory="9GiB")
    assert [row.chip for row in comparison] == ["cpu", "rtx4090"]
    assert repr(comparison).splitlines()[0].startswith("mine: 64 parameters")
    ((question, place),) = asked
    assert question.recipe is plan.question.recipe
    assert (question.memory, question.pins, question.name) == ("9GiB", PINS, "mine")
    assert (place.chip.name, place.budget_bytes) == ("rtx4090", 9 * 2**30)
    with pytest.raises(RecipeError, match="compare needs chips"):
        plan.compare()


@pytest.mark.slow
def test_its_largest_batch_is_a_plan_too(plan):
    """Of the values that are tried the search itself has its own tests; here the first one is late already."""
    found = plan.largest("batch_size", pins={"remat": "none", "precision": "float32"}, within="0.01s")
    assert found.plan.largest_found.value == found == found.plan.given.fields["batch_size"] >= BATCH
    with pytest.raises(RecipeError, match="this recipe has no such option"):
        plan.largest("seq_len")


SCRIPT = """
import sys
from own_functions import *
import optax, plimsoll

def negated(params, batch):  # a function of the program itself, as of a cell
    total, weight, _ = loss(params, batch)
    return total, weight

key = jax.random.key(0)
plan = plimsoll.plan(negated, jax.eval_shape(init, key), tuple(leaf[:8] for leaf in data()), optimizer=optax.adam(1e-2),
                     memory="1GiB", chip="cpu", pins=PINS)
for max_steps in map(int, sys.argv[2:]):
    run = plan.train(init, data(), steps=12, run=sys.argv[1], validation_data=data(20, 1), max_steps=max_steps,
                     save_every=3, log_every=1, eval_every=6, quiet=True)
print(run.evaluate()["loss"])
""".replace("PINS", repr(PINS))


def scripted(folder, *words, text=SCRIPT):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-", *map(str, words)]
    return subprocess.run(command, input=text, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a script's functions: six steps, and six more by the same call."""

    def train(folder):
        done = scripted(folder, folder / "run", 6, 12)
        assert done.returncode == 0, done.stderr
        (folder / "loss").write_text(done.stdout.split()[-1])

    return made_once(tmp_path_factory, "run-of-functions", train)


@pytest.mark.slow
def test_functions_of_a_script_train_inside_the_budget_and_go_on_and_without_them_a_run_is_read_and_not_used(trained):
    run = plimsoll.load(trained / "run")
    assert [row["step"] for row in run.metrics() if "loss" in row] == list(range(1, 13))
    assert run.ledger.measured_bytes <= run.ledger.budget_bytes == 2**30
    evaluated = [row["validation_loss"] for row in run.metrics() if "validation_loss" in row]
    assert float((trained / "loss").read_text()) == pytest.approx(min(evaluated), rel=1e-4)
    assert "finished" in repr(run)
    with workers_here():
        assert {name: leaf.shape for name, leaf in run.params().items()} == {"hidden": (3, 16), "out": (16,)}
        with pytest.raises(PlimsollError, match="no run holds their code"):
            run.evaluate()


@pytest.mark.slow
def test_another_program_with_the_same_functions_continues_to_the_same_parameters(trained, tmp_path):
    for steps in (5, 12):
        done = scripted(tmp_path, tmp_path / "run", steps)
        assert done.returncode == 0, done.stderr
    assert newest_fingerprint(tmp_path / "run") == newest_fingerprint(trained / "run")
    other = SCRIPT.replace("return total, weight", "return 2 * total, weight")
    done = scripted(tmp_path, tmp_path / "run", 12, text=other)
    assert "is a run of another loss: its content when the run began" in done.stderr
    assert RunFolder(tmp_path / "run").saved_steps()[-1] == 12


@pytest.mark.slow
def test_the_example_that_begins_with_another_run_s_weights_runs(trained, tmp_path):
    """Of docs/your-own.md: its tenth step is better than that of the run whose weights it took."""
    shutil.copytree(trained / "run", tmp_path / "runs/mine")
    section = (ROOT / "docs/your-own.md").read_text("utf-8").partition("## Weights of another run")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert example
    program = f"{SCRIPT.partition('for max_steps')[0]}\nother_data = data(80, 2)\n{example[1]}"
    done = scripted(tmp_path, text=program)
    assert done.returncode == 0, done.stderr
    tenth = [
        next(row["loss"] for row in plimsoll.load(tmp_path / "runs" / name).metrics() if row["step"] == 10)
        for name in ("further", "mine")
    ]
    assert tenth[0] < tenth[1]


def test_a_recipe_s_plan_keeps_what_it_was_asked_for_further_questions(plan, monkeypatch):
    asked = []

    def ask(question, say, *, largest=None):
        asked.append((question, largest))
        return replace(plan.planned, largest_found=None if largest is None else LARGEST)

    monkeypatch.setattr(module, "ask", ask)
    recipe = plimsoll.preset("stories", seq_len=64)
    found = plimsoll.plan(Pinned(recipe=recipe, pins={"remat": "block"}), memory="1GiB", steps=7, within="9s")
    assert found.question.recipe == recipe.replace(steps=7, epochs=None)
    longest = found.largest("seq_len")
    assert asked[1] == (found.question, "seq_len")
    assert (f"{longest}", repr(longest), longest.plan.largest_found.value) == ("2048", "2048", 2048)
    assert longest.plan.question.recipe == found.question.recipe.replace(seq_len=2048)
    assert (found.question.memory, found.question.pins, found.question.within) == ("1GiB", {"remat": "block"}, "9s")


@pytest.mark.parametrize("keyword", ["card", "processes", "prepared", "margin_bytes", "pinned_by"])
def test_what_is_ours_cannot_be_passed_by_a_user(keyword):
    with pytest.raises(RecipeError, match=rf"has no option {keyword}"):
        plimsoll.plan("stories", **{keyword: 1})
