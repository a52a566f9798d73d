"""Early stopping: when evaluations in a row bring nothing better, and at the same step after any interruption."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.errors import RecipeError
from plimsoll.processes.interruption import Interruption
from plimsoll.training import memory
from plimsoll.training.acts import Evaluate, Save
from plimsoll.training.loop import Training, run_steps
from plimsoll.training.phases import Phases
from plimsoll.training.program import Executables
from plimsoll.training.schedule import (
    MOST_EVALUATIONS,
    SINCE_BEST,
    Best,
    Every,
    Patience,
    Schedule,
    parse_every,
    steps_between_evaluations,
)
from plimsoll.training.stop import Reason, Stop

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

    in_background = False

    def __init__(self, losses, **schedule):
        self.losses, self.schedule = losses, schedule
        self.saves, self.rows, self.best_step = [], [], None
        self.phases = Phases()

    def session(self, *, stop_at=STEPS, killed_at=None):
        """Returns how the session ended. It continues from the last save; `killed_at` is the step it does not end."""
        first = max(self.saves, default=0)
        self.rows = [row for row in self.rows if row["step"] <= first]
        schedule = Schedule(steps=STEPS, last_step=stop_at, **self.schedule)
        patience = Patience(schedule)
        patience.add_rows(self.rows)

        def step(state, _batch):
            if state["step"] + 1 == killed_at:
                raise Killed
            self.now = state["step"] + 1
            return {**state, "step": self.now}, {"loss": 1.0, "gradient_norm": 1.0}

        stop = Stop(schedule, patience, Interruption())
        loader = NoData()
        save = Save(
            every=schedule.save,
            checkpoints=self,
            loader=loader,
            log=self,
            last=schedule.save.begin(first),
        )
        evaluate = Evaluate(
            every=schedule.evaluate,
            evaluate=lambda _params: {"validation_loss": self.losses[self.now - 1]},
            best=Best(),
            patience=patience,
            stop=stop,
            save=save,
            log=self,
            last=schedule.evaluate.begin(first),
        )
        training = Training(
            state={"step": first, "params": {}},
            executables=Executables(init=None, step=step, evaluate=None, state=None),
            loader=loader,
            evaluate=evaluate,
            save=save,
            stop=stop,
            log=self,
        )
        return run_steps(training)[1]

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
    run = Run(falling_then_rising(12), evaluate=Every(steps=3), patience=patience)
    ended = run.session()
    assert (ended.step, ended.why) == (end, Reason.NO_BETTER if end < STEPS else Reason.FINISHED)
    assert run.best_step == 12
    assert run.saves[-1] == end
    counts = [row.get(SINCE_BEST) for row in run.rows]
    assert counts == [None] * 8 if patience is None else [0, 0, 0, 0, *range(1, (end - 12) // 3 + 1)]


def test_a_metric_of_which_more_is_better_is_waited_for_likewise():
    """The loss falls all the time, and the metric after step 6 no longer rises."""
    schedule = Schedule(steps=STEPS, last_step=STEPS, evaluate=Every(steps=3), best_by="ndcg@10", patience=2)
    stopping = Patience(schedule)
    for step, ndcg in ((3, 0.1), (6, 0.4), (9, 0.4), (12, 0.3)):
        assert not stopping.is_over
        stopping.add(step, {"validation_loss": 1 / step, "validation_ndcg@10": ndcg})
    assert stopping.is_over


def test_the_same_command_after_the_early_end_takes_no_step_and_more_patience_goes_on():
    run = Run(falling_then_rising(12), evaluate=Every(steps=3), patience=2)
    first, again = run.session(), run.session()
    assert (again.step, again.why, run.saves[-1]) == (first.step, Reason.NO_BETTER, 18)
    run.schedule["patience"] = 3
    assert run.session().step == 21
    run.schedule["patience"] = None
    ended = run.session()
    assert (ended.step, ended.why) == (STEPS, Reason.FINISHED)


def test_a_loss_that_is_no_number_is_never_better():
    run = Run([math.nan] * 6 + [2.0] * (STEPS - 6), evaluate=Every(steps=3), patience=4)
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
    how = {"evaluate": Every(steps=evaluate_every), "save": Every(steps=save_every), "patience": patience}
    undisturbed = Run(losses, **how).session()
    run = Run(losses, **how)
    for killed, step in breaks:
        try:
            run.session(**({"killed_at": step} if killed else {"stop_at": step}))
        except Killed:
            continue
    ended = run.session()
    assert ended == undisturbed


@pytest.mark.parametrize(
    ("text", "every"),
    [
        (500, Every(steps=500)),
        ("500", Every(steps=500)),
        (0, Every()),
        ("10min", Every(seconds=600)),
        ("90s", Every(seconds=90)),
        ("1.5h", Every(seconds=5400)),
    ],
)
def test_how_often_is_typed_in_steps_or_as_a_time(text, every):
    assert parse_every(text) == every


@pytest.mark.parametrize("text", ["often", "-5", "10 epochs", "5k"])
def test_what_is_neither_steps_nor_a_time_is_refused(text):
    with pytest.raises(RecipeError):
        parse_every(text)


@given(per_epoch=st.floats(0.3, 5000), epochs=st.integers(1, 100_000))
def test_a_run_evaluates_each_epoch_or_after_several_so_that_they_are_not_too_many(per_epoch, epochs):
    steps = max(1, int(per_epoch * epochs))
    every = steps_between_evaluations(steps, per_epoch)
    assert every == per_epoch * max(1, math.ceil(steps / per_epoch / MOST_EVALUATIONS))
    assert steps / every <= MOST_EVALUATIONS + 1e-9
    if epochs <= MOST_EVALUATIONS:
        assert every == per_epoch


def test_a_run_of_unknown_epochs_evaluates_each_quarter():
    assert [steps_between_evaluations(steps, None) for steps in (1, 7, 400)] == [1, 1, 100]


def test_an_evaluation_by_the_clock_counts_for_nothing():
    """Their number depends on the speed of the machine."""
    schedule = Schedule(steps=STEPS, last_step=STEPS, evaluate=Every(seconds=1), patience=1)
    patience = Patience(schedule)
    assert patience.add(3, {"validation_loss": 1.0}) == {}
    assert not patience.is_over
