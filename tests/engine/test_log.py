"""What a session says at the end of an epoch: the validation loss of that epoch, where it has one."""

import re
from types import SimpleNamespace

import pytest

from plimsoll.engine.log import SessionLog
from plimsoll.recipes.base import Prepared
from plimsoll.recipes.control.recipe import Control
from plimsoll.runs.folder import RunFolder
from plimsoll.training.schedule import Schedule

STRICT = True


def said(tmp_path, *, per_epoch, evaluate_every, steps=10):
    """The (epoch, validation loss) of every summary; the loss of the evaluation at step n is n."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    session = SimpleNamespace(tracker="none", profile=0, quiet=True, log_every=100)
    prepared, source = Prepared(steps=steps, steps_per_epoch=per_epoch), SimpleNamespace(waited_seconds=0.0, state=dict)
    schedule = Schedule(steps=steps, stop_at=steps, evaluate_every=evaluate_every)
    log = SessionLog(session, Control(), {"plan": {}}, prepared, folder, schedule, source, resumed=None)
    for step in range(1, steps + 1):
        log.step(step, {"loss": 1.0})
        if evaluate_every and schedule.due(evaluate_every, step):
            log.evaluation(step, {"validation_loss": float(step)})
    log.close(None, {}, None)
    text = (folder.path / "log.txt").read_text()
    found = re.findall(r"Epoch (\d+)/\d+ summary.*?Val Loss: +(\S+)", text, re.DOTALL)
    return [(int(epoch), loss if loss == "no" else float(loss)) for epoch, loss in found]


@pytest.mark.parametrize("per_epoch", [2.0, 2.5, 3.4, 1.0])
def test_the_summary_has_the_validation_loss_of_its_own_epoch(tmp_path, per_epoch):
    """An epoch need not be a whole number of steps: it is over with the first step that completes it."""
    ends = [step for step in range(1, 11) if int(step / per_epoch + 1e-9) > int((step - 1) / per_epoch + 1e-9)]
    expected = [(int(end / per_epoch + 1e-9), float(end)) for end in ends]
    assert said(tmp_path, per_epoch=per_epoch, evaluate_every=per_epoch) == expected


def test_without_an_evaluation_at_its_end_it_has_the_one_before(tmp_path):
    assert said(tmp_path, per_epoch=2.0, evaluate_every=3) == [(1, "no"), (2, 3.0), (3, 6.0), (4, 6.0), (5, 10.0)]


def test_where_nothing_is_evaluated_every_epoch_is_said_once(tmp_path):
    assert said(tmp_path, per_epoch=5.0, evaluate_every=0) == [(1, "no"), (2, "no")]


@pytest.mark.parametrize("every", [1, 3, 2.5, 0.4])
def test_what_is_due_every_so_many_steps_is_due_when_they_are_over(every):
    schedule = Schedule(steps=100, stop_at=100)
    due = [step for step in range(1, 100) if schedule.due(every, step)]
    assert due == sorted({-int(-n * every // 1) for n in range(1, 1000)} & set(range(1, 100)))
