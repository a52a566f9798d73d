"""Early stopping: when evaluations in a row bring nothing better, and at the same step after any interruption."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.processes.interruption import Interruption
from plimsoll.training import memory
from plimsoll.training.loop import run_steps
from plimsoll.training.program import Executables
from plimsoll.training.schedule import SINCE_BEST, EarlyStopping, Schedule

STEPS = 24


class Killed(Exception):
    pass


class NoData:
    def __next__(self):
        return {}

    def state(self):
        return {}


class Run:
    """A run whose checkpoints and rows stay between its sessions. The loss after step n is the nth of those given."""

    def __init__(self, losses, **schedule):
        self.losses, self.schedule = losses, schedule
        self.saves, self.rows, self.marked = [], [], None

    def session(self, *, stop_at=STEPS, killed_at=None):
        """Returns how the session ended. It continues from the last save; `killed_at` is the step it does not end."""
        first = max(self.saves, default=0)
        self.rows = [row for row in self.rows if row["step"] <= first]
        schedule = Schedule(steps=STEPS, stop_at=stop_at, **self.schedule)
        stopping = EarlyStopping(schedule)
        stopping.add_rows(self.rows)

        def step(state, _batch):
            if state["step"] + 1 == killed_at:
                raise Killed
            self.now = state["step"] + 1
            return {**state, "step": self.now}, {"loss": 1.0, "gradient_norm": 1.0}

        evaluate = lambda _params: {"validation_loss": self.losses[self.now - 1]}  # noqa: E731
        state = {"step": first, "params": {}}
        executables = Executables(init=None, step=step, evaluate=None, state=None)
        return run_steps(
            state, NoData(), executables, schedule, self, evaluate, self, Interruption(), stopping=stopping
        )[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def save(self, step, state, position):
        self.saves.append(step)

    def saved(self, done): ...

    def step(self, done, metrics): ...

    def evaluation(self, done, metrics):
        self.rows.append({"step": done, **metrics})


@pytest.fixture(autouse=True, scope="module")
def _untrimmed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "trim", lambda: None)
        yield


def falling_then_rising(lowest):
    return [abs(step - lowest) + 1.0 for step in range(1, STEPS + 1)]


@pytest.mark.parametrize(("patience", "end"), [(1, 15), (2, 18), (3, 21), (4, 24), (None, 24)])
def test_training_ends_after_so_many_evaluations_without_a_better_one(patience, end):
    run = Run(falling_then_rising(12), evaluate_every=3, patience=patience)
    ended = run.session()
    assert (ended.step, ended.early) == (end, end < STEPS)
    assert run.best_step == 12
    assert run.saves[-1] == end
    counts = [row.get(SINCE_BEST) for row in run.rows]
    assert counts == [None] * 8 if patience is None else [0, 0, 0, 0, *range(1, (end - 12) // 3 + 1)]


def test_a_metric_of_which_more_is_better_is_waited_for_likewise():
    """The loss falls all the time, and the metric after step 6 no longer rises."""
    schedule = Schedule(steps=STEPS, stop_at=STEPS, evaluate_every=3, best_by="ndcg@10", patience=2)
    stopping = EarlyStopping(schedule)
    for step, ndcg in ((3, 0.1), (6, 0.4), (9, 0.4), (12, 0.3)):
        assert not stopping.is_due
        stopping.add(step, {"validation_loss": 1 / step, "validation_ndcg@10": ndcg})
    assert stopping.is_due


def test_the_same_command_after_the_early_end_takes_no_step_and_more_patience_goes_on():
    run = Run(falling_then_rising(12), evaluate_every=3, patience=2)
    first, again = run.session(), run.session()
    assert (again.step, again.early, run.saves[-1]) == (first.step, True, 18)
    run.schedule["patience"] = 3
    assert run.session().step == 21
    run.schedule["patience"] = None
    ended = run.session()
    assert (ended.step, ended.early) == (STEPS, False)


def test_a_loss_that_is_no_number_is_never_better():
    run = Run([math.nan] * 6 + [2.0] * (STEPS - 6), evaluate_every=3, patience=4)
    ended = run.session()
    assert [row[SINCE_BEST] for row in run.rows] == [1, 2, 0, 1, 2, 3, 4]
    assert (ended.step, run.best_step) == (21, 9)


@given(
    losses=st.lists(st.integers(1, 5).map(float), min_size=STEPS, max_size=STEPS),
    patience=st.integers(1, 4),
    evaluate_every=st.sampled_from([1, 2, 2.5, 3, 5]),
    save_every=st.integers(0, 6),
    breaks=st.lists(st.tuples(st.booleans(), st.integers(1, STEPS)), max_size=4),
)
def test_a_run_that_is_killed_or_stopped_anywhere_ends_at_the_same_step(
    losses, patience, evaluate_every, save_every, breaks
):
    """`--max-steps` evaluates where the whole run would not: that evaluation is not counted."""
    how = {"evaluate_every": evaluate_every, "save_every": save_every, "patience": patience}
    undisturbed = Run(losses, **how).session()
    run = Run(losses, **how)
    for killed, step in breaks:
        try:
            run.session(**({"killed_at": step} if killed else {"stop_at": step}))
        except Killed:
            continue
    ended = run.session()
    assert (ended.step, ended.early) == (undisturbed.step, undisturbed.early)
