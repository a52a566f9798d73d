"""What a ladder does with its rungs, with a planner and a trainer that only write down what was asked of them."""

import json
from types import SimpleNamespace

import pytest

from making import made
from plimsoll.api import ladder
from plimsoll.errors import BudgetError, PlimsollError, RecipeError, RunError, StoppedError
from plimsoll.files.facts import Facts
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Ledger, Plan, Planned, RunLedger, SessionBytes
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.text.data import Text
from plimsoll.training import disk
from plimsoll.units import MIB
from plimsoll.values import to_json

PEAKS = {(16, True): 900 * MIB, (16, False): 800 * MIB, (4, True): 400 * MIB, (4, False): 300 * MIB}
"""Micro-batch and whether saves are beside training, to the predicted peak."""
SECONDS = {16: 2.0, 4: 1.0}
STATE = 60 * MIB


def prepare(self, reading, say):
    """Prepares text that is nowhere: what this leaves is all that is read."""
    (reading.folder / "tokenizer.json").write_text("{}")
    return Prepared(steps=reading.length.steps, steps_per_epoch=None)


@pytest.fixture(autouse=True)
def _prepares(monkeypatch):
    monkeypatch.setattr(Text, "prepare", prepare)
    monkeypatch.setattr(Text, "facts", lambda self: Facts())


RECIPE = made("stories", batch_size=16, steps=100)


def found(pins, **_):
    peak = PEAKS[pins["micro_batch"], pins["async_save"]]
    predicted = {"process": peak - STATE, "parameters": STATE // 3, "optimizer": STATE - STATE // 3}
    return Planned(
        plan=Plan.from_dict({"chip": "cpu", "accumulation": 16 // pins["micro_batch"], **pins}),
        ledger=Ledger(budget_bytes=2**60, components=predicted, phase="train"),
        recipe="stories", parameters=1_000_000, step_seconds=1.0, step_seconds_source="roofline", step_flops=1.0,
        chip_flops=1.0, tokens_per_step=2048, examples_per_step=16, compiles=1, devices=1, reason="",
        disk=disk.needed(STATE),
    )  # fmt: skip


def trained(folder, plan, first, last):
    """What a session of these steps leaves in its folder; the second one needs 10 MiB more."""
    micro = plan["micro_batch"]
    with open(folder / "metrics.jsonl", "a") as file:
        for step in range(first, last + 1):
            loss = 8.0 - step / 100 + (1e-6 if micro == 4 and step == 2 else 0)
            slow = 5.0 if step == first else 0.0
            file.write(json.dumps({"step": step, "loss": loss, "step_seconds": SECONDS[micro] + slow}) + "\n")
        file.write(json.dumps({"step": last, "validation_loss": 7.5}) + "\n")
    resumed = first > 1
    components = {
        "parameters": STATE // 3,
        "optimizer": STATE - STATE // 3,
        "step temporaries": None if resumed else 77 * MIB,  # a restore had needed more
    }
    peak = PEAKS[micro, plan["async_save"]] + (10 * MIB if resumed else 0)
    run = RunFolder(folder)
    session = SessionBytes(peak_bytes=peak, phases={"train": peak}, components=components)
    run.write("ledger.json", to_json(RunLedger.of_plan(run.planned()).merged(session, None)))


@pytest.fixture
def world(monkeypatch, tmp_path):
    """What was asked, in order; `refuse` holds errors by the name of a rung."""
    asked = SimpleNamespace(plans=[], sessions=[], refuse={}, folders=set(), steps={})

    def find_plan(question, place, prepared, say):
        assert place.chip.name == "cpu"
        pins = question.pins
        asked.plans.append((pins["micro_batch"], pins["async_save"]))
        return found(pins)

    def train(recipe, options):
        folder = RunFolder(options.run).path
        asked.folders.add(folder)
        asked.sessions.append((folder.name, options.max_steps))
        assert (folder / "tokenizer.json").exists()
        assert (options.keep_plan, options.log_every, options.quiet) == (True, 1, True)
        if folder.name in asked.refuse:
            raise asked.refuse[folder.name]
        planned = json.loads((folder / "plan.json").read_text())
        trained(folder, planned["plan"], asked.steps.get(folder, 0) + 1, options.max_steps)
        asked.steps[folder] = options.max_steps

    monkeypatch.setattr(ladder, "find_plan", find_plan)
    monkeypatch.setattr(ladder, "_train", train)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    return asked


def climbed(**options):
    chosen = options.pop("chosen", ["save", "micro-batch"])
    found = ladder.climb(RECIPE, chosen=chosen, **{"name": "stories", "memory": "2GiB", "steps": 6, **options})
    found = found.to_dict()
    return found, {row["name"]: row for row in found["rungs"]}


def test_rungs_are_planned_before_one_is_trained_and_a_row_holds_what_was_predicted_and_measured(world):
    found, rows = climbed()
    assert world.plans == [(16, True), (16, False), (4, False)]
    names = ["plain", "save", "micro-batch"]
    assert world.sessions == [(name, stop) for stop in (4, 6) for name in names], "they take turns"
    assert found["stops"] == [4, 6]
    row = rows["micro-batch"]
    assert row["predicted_peak_bytes"] == 300 * MIB
    assert row["measured_peak_bytes"] == 310 * MIB  # restored
    assert row["state_bytes"] == STATE
    assert row["temporary_bytes"] == 77 * MIB  # of the first session: the second could not see it
    assert row["step_seconds"] == 1.0  # without the first step of a session
    assert row["session_step_seconds"] == [1.0, 1.0]
    assert row["step_ratio"] == 0.5
    assert row["tokens_per_second"] == 16 * 128
    assert row["loss"] == 8.0 - 6 / 100
    assert row["validation_loss"] == 7.5
    assert row["loss_drift"] == pytest.approx(1e-6 / 7.98, rel=1e-3)  # of the step that is furthest off
    assert rows["plain"]["loss_drift"] == 0
    assert row["plan"]["micro_batch"] == 4
    assert json.loads(json.dumps(found)) == found


def test_a_rung_over_the_memory_is_predicted_and_not_run(world):
    found, rows = climbed(memory="500MiB")
    assert found["budget_bytes"] == 500 * MIB
    assert [rows[name]["outcome"] for name in ("plain", "save", "micro-batch")] == [
        "predicted",
        "predicted",
        "measured",
    ]
    assert rows["plain"]["predicted_peak_bytes"] == 900 * MIB
    assert rows["plain"]["measured_peak_bytes"] is None
    assert rows["plain"]["state_bytes"] == STATE
    assert {name for name, _ in world.sessions} == {"micro-batch"}
    assert rows["micro-batch"]["step_ratio"] == 1  # the first that was run


def test_a_rung_that_fails_is_a_row_with_its_reason_and_not_the_end(world):
    world.refuse["save"] = StoppedError("step 2: the loss is nan")
    _, rows = climbed()
    assert rows["save"]["outcome"] == "failed"
    assert rows["save"]["why_not"] == "step 2: the loss is nan"
    assert rows["save"]["measured_peak_bytes"] is None
    assert rows["micro-batch"]["outcome"] == "measured"
    assert world.sessions.count(("save", 4)) == 1
    assert ("save", 6) not in world.sessions


@pytest.mark.parametrize("none", [False, True])
def test_a_rung_that_cannot_be_planned_is_a_row_too_and_where_none_can_the_reason_is_raised(world, monkeypatch, none):
    whole = ladder.find_plan

    def find_plan(question, place, prepared, say):
        if none or question.pins["micro_batch"] == 4:
            raise BudgetError("stories does not compile for cpu", budget_bytes=1, floor_bytes=None)
        return whole(question, place, prepared, say)

    monkeypatch.setattr(ladder, "find_plan", find_plan)
    if none:
        with pytest.raises(PlimsollError, match="stories does not compile for cpu"):
            climbed()
        return
    _, rows = climbed()
    assert rows["micro-batch"]["why_not"] == "stories does not compile for cpu"
    assert rows["micro-batch"]["predicted_peak_bytes"] is None
    assert rows["save"]["outcome"] == "measured"


def test_nothing_is_left_of_the_runs_unless_a_folder_is_named(world, tmp_path):
    climbed()
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(RecipeError, match="no rung of this ladder"):
        climbed(folder=tmp_path / "kept", chosen=["ramat"])
    assert not (tmp_path / "kept").exists(), "no rung began in it"
    climbed(folder=tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["micro-batch", "plain", "save"]
    assert (tmp_path / "kept/save/metrics.jsonl").exists()
    with pytest.raises(RunError, match="is there already"):
        climbed(folder=tmp_path / "kept")


def test_checkpoints_of_all_rungs_must_fit_on_the_disk_together(world, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2 * disk.needed(STATE).bytes))
    with pytest.raises(RunError, match=r"the checkpoints of 3 rungs take 723\.0 MiB"):
        climbed()
    assert world.sessions == []
    climbed(chosen=["save"])


def test_a_rung_takes_at_least_three_steps_and_no_more_than_the_recipe_has(world):
    with pytest.raises(RecipeError, match="--rung-steps must be 3 or more"):
        climbed(steps=2)
    with pytest.raises(RecipeError, match="a rung takes 3 steps or more, and stories has 2"):
        ladder.climb(RECIPE.replace(steps=2), name="stories", steps=12)
    assert ladder.climb(RECIPE.replace(steps=4), name="stories", chosen=["save"], steps=12).stops == (3, 4)


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (137, "", "killed by signal 9: the machine may be out of memory"),
        (3, "a warning\nerror: step 2: the loss is nan\n  lower it", "step 2: the loss is nan\n  lower it"),
        (1, "Traceback\nValueError: no", "ended with code 1: ValueError: no"),
        (1, "", "ended with code 1"),
    ],
)
def test_what_a_process_said_last_is_the_reason(code, said, words):
    assert ladder._last_words(code, said).startswith(words)


def test_a_ladder_for_a_chip_is_planned_and_nothing_is_trained_or_prepared(monkeypatch):
    asked = []

    def find_smallest(question, place, data, say):
        asked.append(place)
        if question.pins["async_save"]:
            raise PlimsollError("too large by far")
        return found(question.pins)

    monkeypatch.setattr(ladder, "find_smallest", find_smallest)
    told = ladder.predict(RECIPE, name="stories", chip="t4", memory="2GiB", chosen=["save", "micro-batch"])
    told = told.to_dict()
    assert [row["outcome"] for row in told["rungs"]] == ["failed", "predicted", "predicted"]
    assert all((place.chip.name, place.budget_bytes) == ("t4", 2048 * MIB) for place in asked)
    _, save, micro = told["rungs"]
    assert (save["predicted_peak_bytes"], micro["predicted_peak_bytes"]) == (800 * MIB, 300 * MIB)
    assert (micro["state_bytes"], micro["step_seconds"], micro["why_not"]) == (STATE, 1.0, None)
    assert told["rungs"][0]["why_not"] == "too large by far"
    assert json.loads(json.dumps(told)) == told
    with pytest.raises(PlimsollError, match="too large by far"):
        ladder.predict(RECIPE, name="stories", chip="t4", chosen=["plain"])
