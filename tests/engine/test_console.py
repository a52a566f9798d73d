"""What a session logs: rows, and at the end of an epoch its summary, with the validation loss of that epoch."""

import io
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plimsoll.engine import console as engine_console
from plimsoll.engine.console import Console
from plimsoll.engine.meter import Epochs
from plimsoll.engine.options import Session
from plimsoll.engine.training_run import TrainingRun
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registry import preset
from plimsoll.report.metrics import read_rows
from plimsoll.training.phases import Phases
from plimsoll.training.schedule import Best, Schedule, completes, epochs_over, times
from plimsoll.training.stop import Ended, Reason
from report_examples import LEDGER, PLANNED

STRICT = True


def made(tmp_path, *, per_epoch, steps=10, of_recipe=None, quiet=True, log_every=100, **planned):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    run = TrainingRun(
        session=Session(run=str(folder.path), budget_bytes=1, quiet=quiet, log_every=log_every),
        folder=folder,
        recipe=preset("control"),
        planned=replace(PLANNED, **planned),
        prepared=Prepared(steps=steps, steps_per_epoch=per_epoch, evaluate_every=of_recipe),
    )
    source = SimpleNamespace(waited_seconds=0.0, state=dict)
    return Console(run, Schedule(steps=steps, last_step=steps), source, Phases(), resumed=None)


def said(tmp_path, *, per_epoch, evaluate_every, steps=10, of_recipe=None):
    """The (epoch, validation loss) of every summary; the loss of the evaluation at step n is n."""
    console = made(tmp_path, per_epoch=per_epoch, steps=steps, of_recipe=of_recipe)
    for step in range(1, steps + 1):
        console.step(step, {"loss": 1.0})
        if evaluate_every and (completes(evaluate_every, step) or step == steps):
            console.evaluation(step, {"validation_loss": float(step)})
    console.close()
    text = (tmp_path / "run/log.txt").read_text()
    found = re.findall(r"Epoch (\d+)/[\d.]+ summary.*?Val Loss: +(\S+)", text, re.DOTALL)
    return [(int(epoch), loss if loss == "no" else float(loss)) for epoch, loss in found]


@pytest.mark.parametrize("per_epoch", [2.0, 2.5, 3.4, 1.0])
def test_the_summary_has_the_validation_loss_of_its_own_epoch(tmp_path, per_epoch):
    """An epoch need not be a whole number of steps: it is over with the first step that completes it."""
    ends = [step for step in range(1, 11) if int(step / per_epoch + 1e-9) > int((step - 1) / per_epoch + 1e-9)]
    expected = [(int(end / per_epoch + 1e-9), float(end)) for end in ends]
    if per_epoch == 3.4:  # three epochs are 10.2 steps, and a run of them 10
        expected.append((3, 10.0))
    assert said(tmp_path, per_epoch=per_epoch, evaluate_every=per_epoch) == expected


@given(per_epoch=st.floats(1, 1000), epochs=st.integers(1, 100))
@example(per_epoch=194.75, epochs=2)
@example(per_epoch=65_104.17 / 50_000, epochs=50_000)
def test_a_run_of_so_many_epochs_has_them_all_at_its_end_and_none_before_it_is_over(per_epoch, epochs):
    steps = int(epochs * per_epoch)
    assert epochs_over(steps, per_epoch, steps) == epochs
    assert all(
        epochs_over(done, per_epoch, steps) == times(done, per_epoch) for done in range(max(0, steps - 50), steps)
    )


def test_where_a_step_reads_the_data_more_than_once_its_epochs_are_counted_too():
    assert [epochs_over(done, 0.95, 57) for done in (1, 19, 56, 57)] == [1, 20, 58, 60]


@pytest.mark.parametrize(
    ("per_epoch", "steps", "taken", "epochs"),
    [
        (194.75, 389, 389, 2),
        (194.75, 389, 388, 1),
        (0.95, 57, 57, 60),
        (2.0, 10, 10, 5),
        (None, 10, 10, 0),
        (20.0, 10, 10, 0),
    ],
)
def test_the_whole_run_has_as_many_epochs_as_its_steps_are(tmp_path, monkeypatch, per_epoch, steps, taken, epochs):
    """However many of them this session took: its summary tells of the steps and the time of the whole run, too."""
    outcomes = []
    monkeypatch.setattr(engine_console, "final_summary", lambda outcome: outcomes.append(outcome) or "")
    console = made(tmp_path, per_epoch=per_epoch, steps=steps)
    console.summarise(Ended(taken, Reason.FINISHED), LEDGER, Best())
    console.close()
    (outcome,) = outcomes
    assert outcome.epochs == epochs
    assert outcome.epochs_begun == pytest.approx(taken / per_epoch if per_epoch else 0)


@pytest.mark.parametrize(
    ("reason", "step", "is_said"),
    [(Reason.FINISHED, 12, True), (Reason.FINISHED, 40, False), (Reason.TERMINATE, 12, False)],
)
def test_the_summary_names_max_steps_only_if_they_ended_the_session(tmp_path, monkeypatch, reason, step, is_said):
    outcomes = []
    monkeypatch.setattr(engine_console, "final_summary", lambda outcome: outcomes.append(outcome) or "")
    console = made(tmp_path, per_epoch=None, steps=40)
    console.summarise(Ended(step, reason), LEDGER, Best())
    console.close()
    (outcome,) = outcomes
    assert outcome.is_at_limit == is_said
    assert not outcome.ended_early


@pytest.mark.parametrize(
    ("about", "summaries"),
    [
        ({"per_epoch": 2.0, "evaluate_every": 3}, [(1, "no"), (2, 3.0), (3, 6.0), (4, 6.0), (5, 10.0)]),
        ({"per_epoch": 5.0, "evaluate_every": 0}, [(1, "no"), (2, "no")]),
        (
            {"per_epoch": 2.0, "evaluate_every": 6.0, "steps": 21, "of_recipe": 6.0},  # every few epochs
            [(3, 6.0), (6, 12.0), (9, 18.0), (10, 21.0)],
        ),
    ],
)
def test_without_an_evaluation_at_its_end_an_epoch_has_the_one_before(tmp_path, about, summaries):
    assert said(tmp_path, **about) == summaries


def test_shares_of_many_systems_are_one_column_of_the_logged_row(tmp_path):
    console = made(tmp_path, per_epoch=None)
    found = {"validation_unexplained_0": 0.25, "validation_unexplained_12": float("nan")}
    console.evaluation(1, {"validation_loss": 1.0, **found})
    (row,) = read_rows(tmp_path / "run/metrics.jsonl")
    assert row["validation_unexplained"] == {"0": 0.25, "12": None}
    assert not found.keys() & row.keys()
    console.close()


def test_lines_of_progress_and_evaluations_have_the_metrics_of_ones_own(tmp_path, monkeypatch):
    """But those that every task has, and those of which there is one for each of many systems."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    console = made(tmp_path, per_epoch=None, quiet=False, log_every=1)
    of_every_task = {
        "weight": 64.0,
        "gradient_norm": 1.0,
        "gradient_norm/blocks/0": 0.5,
        "scale": 2.0,
        "skipped_steps": 0.0,
    }
    own = {"accuracy": 0.75, "unexplained_0": 0.1}
    console.step(1, {**own, "loss": 1.0, **of_every_task})
    console.evaluation(1, {"validation_loss": 0.5, "validation_accuracy": 0.625, "evaluations_since_best": 0})
    console.close()
    first, second = sys.stderr.getvalue().splitlines()
    assert re.match(r"step  1/10  loss 1\.0000  accuracy 0\.75  (tokens|examples|windows|\d)", first)
    assert second == "step 1: validation loss 0.5000, accuracy 0.625"


def test_the_first_step_of_a_session_has_a_line_though_none_is_due(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    console = made(tmp_path, per_epoch=None, quiet=False, log_every=100)
    console.step(1, {"loss": 1.5})
    console.step(2, {"loss": 1.25})
    console.close()
    assert sys.stderr.getvalue().splitlines() == ["step 1: loss 1.5000"]
    assert list(read_rows(tmp_path / "run/metrics.jsonl")) == []


@pytest.mark.parametrize(("step_flops", "has"), [(1e-12, True), (1e30, False)])
def test_a_share_of_more_than_the_machine_was_measured_to_do_is_no_share(tmp_path, step_flops, has):
    console = made(tmp_path, per_epoch=None, steps=1, step_flops=step_flops, chip_flops=1.0)
    console.step(1, {"loss": 1.0})
    (row,) = read_rows(tmp_path / "run/metrics.jsonl")
    assert ("mfu" in row) == has
    console.close()


@pytest.mark.parametrize("every", [1, 3, 2.5, 0.4])
def test_what_is_due_every_so_many_steps_is_due_when_they_are_over(every):
    due = [step for step in range(1, 100) if completes(every, step)]
    assert due == sorted({-int(-n * every // 1) for n in range(1, 1000)} & set(range(1, 100)))


def test_where_evaluations_are_rarer_than_epochs_a_summary_is_of_several():
    """A run of 1,000 epochs of two steps evaluates a hundred times by default."""
    epochs = Epochs(Prepared(steps=2000, steps_per_epoch=2.0), step=0)
    numbers = []
    for step in range(1, 101):
        epochs.add(step, loss=float(step), elapsed_seconds=0.0)
        summary = epochs.summary(None)
        if summary is not None:
            numbers.append((summary.number, summary.train_loss))
    assert numbers == [(10, 10.5), (20, 30.5), (30, 50.5), (40, 70.5), (50, 90.5)]
