"""What a session begins with: when it evaluates and saves, and what earlier sessions evaluated."""

import math
from types import SimpleNamespace

import pytest

from plimsoll.engine.beginning import BY_CLOCK, evaluated_before, schedule_of
from plimsoll.engine.options import Session
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.registry import preset
from plimsoll.report.metrics import MetricsLog
from plimsoll.training import distributed
from plimsoll.training.schedule import Every


def run_of(*, folder=None, steps=400, per_epoch=None, own=None, data_since=0, **options):
    return SimpleNamespace(
        session=Session(budget_bytes=1, **options),
        folder=folder,
        prepared=Prepared(steps=steps, steps_per_epoch=per_epoch, evaluate_every=own, data_since=data_since),
        recipe=preset("control"),
    )


@pytest.mark.parametrize(
    ("about", "steps"),
    [({}, 100), ({"per_epoch": 40.0}, 40), ({"per_epoch": 2.0}, 4), ({"per_epoch": 40.0, "own": 80.0}, 80)],
)
def test_a_run_evaluates_each_quarter_or_epoch_or_as_the_recipe_says(about, steps):
    assert schedule_of(run_of(**about)).evaluate == Every(steps=steps)


def test_a_process_alone_saves_by_the_clock_besides_and_several_do_not(monkeypatch):
    alone = schedule_of(run_of()).save
    assert (alone.steps, alone.seconds, alone.first_seconds) == (100, BY_CLOCK.seconds, BY_CLOCK.first_seconds)
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    assert schedule_of(run_of()).save == Every(steps=100)


def test_what_is_typed_holds_alone():
    schedule = schedule_of(run_of(eval_every="10min", save_every=7, max_steps=30, max_seconds=90.0))
    assert schedule.evaluate == Every(seconds=600)
    assert schedule.save == Every(steps=7)
    assert (schedule.steps, schedule.last_step, schedule.seconds) == (400, 30, 90.0)
    assert schedule_of(run_of(eval_every=0)).evaluate == Every()
    assert schedule_of(run_of()).seconds == math.inf


def test_evaluations_of_other_data_are_no_best_and_try_no_patience(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    log = MetricsLog(folder.metrics)
    for step, loss in ((10, 1.0), (20, 3.0), (30, 2.0), (40, 2.5)):
        log.log(step, {"loss": 9.0})
        log.log(step, {"validation_loss": loss})
    log.close()
    folder.saved_steps = lambda: [10, 20, 30, 40]
    run = run_of(folder=folder, eval_every=10, patience=5, data_since=10)
    before = evaluated_before(run, schedule_of(run))
    assert (before.best.step, before.best.validation_loss) == (30, 2.0)
    assert (before.patience.since_best, before.step) == (1, 40)
