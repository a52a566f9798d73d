"""The loop between steps: what an evaluation comes to, which checkpoint is the best, what is given back."""

import math
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from plimsoll.errors import StoppedError
from plimsoll.processes.interruption import Interruption
from plimsoll.training import loop, memory, schedule, stop
from plimsoll.training.acts import Evaluate, Save
from plimsoll.training.loop import Training, run_steps
from plimsoll.training.phases import Phases
from plimsoll.training.program import Executables
from plimsoll.training.reports import EvaluationStopped, summed
from plimsoll.training.schedule import Best, Every, Last, Patience, Schedule
from plimsoll.training.stop import Ended, Reason, Stop
from plimsoll.types import LossSum


class Numbered:
    """A source whose position is how many batches it has given."""

    def __init__(self, given):
        self.given = given

    def __next__(self):
        self.given += 1
        return {}

    def state(self):
        return {"given": self.given}


class Kept:
    """Checkpoints that only note what they are told."""

    def __init__(self, told, saving):
        self.told, self.saving, self.best_step = told, saving, None
        self.in_background = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.told.append("closed")

    def save(self, step, state, position):
        assert state["step"] == position["given"] == step  # about to yield the next batch
        self.saving()
        self.told.append(f"checkpoint {step}")


class Telling:
    """A log that notes evaluations and saves, and steps where they are asked for."""

    def __init__(self, told, *, steps=False):
        self.told, self.steps = told, steps
        self.phases = Phases()

    def step(self, done, metrics):
        if self.steps:
            self.told.append(f"logged {done}: {metrics['loss']:g}")

    def evaluation(self, done, metrics):
        self.told.append(f"evaluation {done}")

    def saved(self, done):
        self.told.append(f"saved {done}")


@pytest.fixture(autouse=True)
def _untrimmed(monkeypatch):
    """Nothing is given back here: that takes longer than all else."""
    monkeypatch.setattr(memory, "trim_heap", lambda: None)


AT_THE_END_ALONE = Every()


def trained(
    *,
    first=0,
    stop_at=4,
    during=lambda step: None,
    over_budget=lambda: False,
    evaluation=None,
    interruption=None,
    told=None,
    last_evaluated=None,
    diverges_at=99,
    saving=lambda: None,
    logs_steps=False,
    steps=9,
    seconds=math.inf,
    evaluate=AT_THE_END_ALONE,
    save=AT_THE_END_ALONE,
    best_by="loss",
):
    """Steps that do nothing but `during`: what was told, in order, the end, and what is marked as best. The loss of a
    step is its number, NaN from `diverges_at` on."""
    told = [] if told is None else told
    log = Telling(told, steps=logs_steps)

    def step(state, _batch):
        step = state["step"] + 1
        told.append(step)
        during(step)
        loss = float("nan") if step >= diverges_at else float(step)
        return state | {"step": step}, {"loss": loss, "gradient_norm": 1.0}

    def metrics_of(_params):
        return {"validation_loss": 1.0} if evaluation is None else evaluation(told[-1])

    when = Schedule(
        steps=max(steps, stop_at), last_step=stop_at, seconds=seconds, evaluate=evaluate, save=save, best_by=best_by
    )
    patience = Patience(when)
    ends = Stop(when, patience, interruption or Interruption(), over_budget)
    loader = Numbered(first)
    saves = Save(
        every=when.save,
        checkpoints=Kept(told, saving),
        loader=loader,
        log=log,
        last=when.save.begin(first),
    )
    evaluates = Evaluate(
        every=when.evaluate,
        evaluate=metrics_of,
        best=Best(best_by),
        patience=patience,
        stop=ends,
        save=saves,
        log=log,
        last=when.evaluate.begin(first if last_evaluated is None else last_evaluated),
    )
    training = Training(
        state={"step": first, "params": {}},
        executables=Executables(init=None, step=step, evaluate=None, state=None),
        loader=loader,
        evaluate=evaluates,
        save=saves,
        stop=ends,
        log=log,
    )
    _, ended = run_steps(training)
    return told, ended, saves.checkpoints.best_step


def words_of(told):
    """What was told but for the steps that were taken."""
    return [word for word in told if isinstance(word, str)]


class Clock:
    """Time as `time.monotonic` tells it, which passes when a test says so."""

    def __init__(self):
        self.now = 100.0

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(schedule.time, "monotonic", lambda: made.now)
    return made


BY_CLOCK = Every(seconds=300, first_seconds=60, largest_share=0.05)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_steps_under_way_at_the_end_are_logged_before_the_last_evaluation_and_save(monkeypatch, in_flight):
    monkeypatch.setitem(loop.IN_FLIGHT, "cpu", in_flight)
    told, *_ = trained(stop_at=5, logs_steps=True)
    logged = [f"logged {step}: {step}" for step in range(1, 6)]
    assert words_of(told) == [*logged, "evaluation 5", "checkpoint 5", "saved 5", "closed"]
    stopped = []
    trained(stop_at=5, logs_steps=True, told=stopped, over_budget=lambda: 3 in stopped)
    assert words_of(stopped) == [*logged[:3], "checkpoint 3", "saved 3", "closed"]


@pytest.mark.parametrize(
    ("every", "save_seconds", "saves"),
    [
        (BY_CLOCK, 0, [2, 8, 14, 20]),
        (BY_CLOCK, 25, [2, 12, 20]),
        (Every(seconds=300), 25, [6, 12, 18, 20]),
        (Every(), 0, [20]),
    ],
    ids=["soon, then every 5 minutes", "less often where it takes long", "as often as asked for", "only by steps"],
)
def test_steps_of_fifty_seconds_are_saved_by_the_clock(clock, every, save_seconds, saves):
    told, *_ = trained(
        stop_at=20, during=lambda step: clock.passes(50), saving=lambda: clock.passes(save_seconds), save=every
    )
    assert [word for word in words_of(told) if "saved" in word] == [f"saved {step}" for step in saves]


def test_an_evaluation_every_two_minutes_is_after_the_step_in_which_they_are_over(clock):
    """They count from the end of the last one, and of those after so many steps, too."""

    def evaluation(step):
        clock.passes(30)
        return {"validation_loss": -float(step)}

    told, *_ = trained(
        stop_at=9,
        during=lambda step: clock.passes(50),
        evaluation=evaluation,
        evaluate=Every(seconds=120),
    )
    assert [word for word in words_of(told) if "evaluation" in word] == [f"evaluation {step}" for step in (3, 6, 9)]


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("evaluate_every", [1, 0])
def test_a_step_that_diverged_is_neither_evaluated_nor_saved_even_if_it_is_still_under_way(
    monkeypatch, in_flight, evaluate_every
):
    monkeypatch.setitem(loop.IN_FLIGHT, "cpu", in_flight)
    told = []
    with pytest.raises(StoppedError, match=r"step 3: the loss is nan"):
        trained(stop_at=6, told=told, diverges_at=3, evaluate=Every(steps=evaluate_every), save=Every(steps=1))
    assert {word.rpartition(" ")[2] for word in words_of(told)} == {"1", "2", "closed"}


def test_an_evaluation_is_a_ratio_of_sums_whatever_the_batches_are():
    """Batches of 1, 3 and 6 tokens: 21 nats over 10 tokens, where the mean of the three means would be 1.5."""
    batches = [
        {"loss": LossSum(0.0, 1.0), "accuracy": LossSum(1.0, 1.0), "never": LossSum(0.0, 0.0)},
        {"loss": LossSum(3.0, 3.0), "accuracy": LossSum(0.0, 3.0), "never": LossSum(0.0, 0.0)},
        {"loss": LossSum(18.0, 6.0), "accuracy": LossSum(3.0, 6.0), "never": LossSum(0.0, 0.0)},
    ]
    params = object()

    def evaluate(given, batch):
        assert given is params
        return batches[batch["number"]]

    told = summed(({"number": number} for number in range(3)), evaluate, params)
    assert told == pytest.approx({"validation_loss": 2.1, "validation_accuracy": 0.4})


def test_library_pages_are_given_back_before_and_after_every_evaluation_and_after_every_save(monkeypatch):
    """What they brought would be part of the peak of the steps that follow."""
    events = []
    monkeypatch.setattr(memory, "give_back_libraries", lambda: events.append("given back"))
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setenv(memory.GIVES_BACK, "1")

    def evaluation(step):
        events.append("evaluated")
        return {"validation_loss": float(step)}

    trained(stop_at=2, evaluate=Every(steps=1), evaluation=evaluation)
    assert events == 2 * ["given back", "evaluated", "given back", "given back"]  # saved: the best, and the last


@pytest.mark.parametrize(
    ("every", "due"),
    [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6]), (2.5, [3, 5]), (0.4, [1, 2, 3, 4, 5, 6, 7]), (9, []), (0, [])],
)
def test_what_is_done_every_so_many_steps_is_due_in_the_step_that_completes_them(every, due):
    last = Last(step=0, time=0.0)
    assert [step for step in range(1, 8) if Every(steps=every).is_due(step, last)] == due


AT_THE_END = ["evaluation 4", "checkpoint 4", "saved 4", "closed"]


def test_a_session_evaluates_and_saves_once_at_its_end_and_where_it_is_due():
    told, ended, marked = trained()
    assert told == [1, 2, 3, 4, *AT_THE_END]
    assert ended == Ended(4, Reason.FINISHED)
    assert marked == 4
    told, *_ = trained(evaluate=Every(steps=2), save=Every(steps=4))
    assert told == [1, 2, "evaluation 2", "checkpoint 2", "saved 2", 3, 4, *AT_THE_END]


def test_when_time_is_up_a_session_evaluates_and_saves_the_step_it_is_at(clock):
    told, ended, _ = trained(seconds=10.0, during=lambda step: clock.passes(5.0))
    assert told == [1, 2, "evaluation 2", "checkpoint 2", "saved 2", "closed"]
    assert ended == Ended(2, Reason.TIME_IS_UP)


@pytest.mark.parametrize(("number", "at"), [(2, 2), (15, 4)])
def test_a_signal_saves_the_step_it_came_in_and_evaluates_nothing_that_is_not_due(number, at):
    interruption = Interruption()

    def during(step):
        if step == at:
            interruption.signal = number

    told, ended, _ = trained(during=during, interruption=interruption)
    assert told == [*range(1, at + 1), f"checkpoint {at}", f"saved {at}", "closed"]
    assert ended == Ended(at, Reason(number))
    assert ended.why.exit_code == 128 + number


@pytest.mark.parametrize(("at", "evaluate_every"), [(2, 2), (4, 2), (4, 0)])
def test_a_signal_during_an_evaluation_ends_that_and_the_next_session_begins_with_it(at, evaluate_every):
    interruption = Interruption()

    def evaluation(step):
        if step < at:
            return {"validation_loss": 1.0}
        interruption.signal = 15
        raise EvaluationStopped

    every = Every(steps=evaluate_every)
    told, ended, _ = trained(evaluation=evaluation, interruption=interruption, evaluate=every)
    assert told[-4:] == [at, f"checkpoint {at}", f"saved {at}", "closed"]
    assert ended == Ended(at, Reason.TERMINATE)
    told = [at]
    trained(first=at, told=told, evaluate=every, last_evaluated=at - 2)
    rest = ["closed"] if at == 4 else [3, 4, *AT_THE_END]
    assert told == [at, f"evaluation {at}", *rest]


def test_what_was_evaluated_before_it_was_saved_is_not_evaluated_again():
    every = Every(steps=2)
    assert trained(first=2, evaluate=every, last_evaluated=2)[0] == [3, 4, *AT_THE_END]
    assert trained(first=1, evaluate=every, last_evaluated=0)[0][0] == 2
    assert trained(first=0, evaluate=every, last_evaluated=0)[0][0] == 1


def test_of_several_processes_a_signal_in_the_last_step_is_no_reason_until_all_agree(monkeypatch):
    """Each of them evaluates then, or none would: an evaluation needs all of them."""
    monkeypatch.setattr(stop, "Agreement", lambda: agreed)

    def agreed(request):
        return 0

    agreed.alone = False
    interruption = Interruption()
    interruption.signal = 15
    told, ended, _ = trained(interruption=interruption)
    assert told == [1, 2, 3, 4, *AT_THE_END]
    assert ended.why is Reason.FINISHED


def test_over_its_budget_a_session_saves_and_evaluates_nothing():
    told = []
    _, ended, _ = trained(told=told, over_budget=lambda: 2 in told)
    assert told == [1, 2, "checkpoint 2", "saved 2", "closed"]
    assert ended == Ended(2, Reason.OVER_BUDGET)
    told = []
    _, ended, _ = trained(told=told, over_budget=lambda: 4 in told)
    assert ended == Ended(4, Reason.FINISHED)


def test_a_signal_is_told_before_time_and_time_before_the_budget(clock):
    interruption = Interruption()
    interruption.signal = 2
    ends = [
        trained(first=1, interruption=interruption, over_budget=lambda: True, seconds=0.0)[1],
        trained(first=1, over_budget=lambda: True, seconds=0.0)[1],
        trained(first=1, over_budget=lambda: True)[1],
    ]
    assert [ended.why for ended in ends] == [Reason.INTERRUPT, Reason.TIME_IS_UP, Reason.OVER_BUDGET]
    assert [ended.why.exit_code for ended in ends] == [130, 0, 0]


@pytest.mark.parametrize(
    ("best_by", "of_steps", "best"),
    [
        ("loss", {1: (3.0, 0), 2: (2.0, 0), 3: (2.0, 0), 4: (2.5, 0)}, 2),
        ("f1", {1: (3.0, 0.1), 2: (2.0, 0.3), 3: (1.0, 0.3), 4: (0.5, 0.2)}, 2),
        ("f1", {1: (9.0, 0.1), 2: (9.0, -0.2), 3: (8.0, 0.0), 4: (1.0, 0.1)}, 1),
    ],
)
def test_the_best_is_the_first_with_the_lowest_loss_or_the_most_of_a_metric_and_is_saved_at_once(
    best_by, of_steps, best
):
    def evaluation(step):
        loss, f1 = of_steps[step]
        return {"validation_loss": loss, "validation_f1": f1}

    told, _, marked = trained(evaluate=Every(steps=1), best_by=best_by, evaluation=evaluation)
    assert marked == best
    assert f"checkpoint {best}" in told
    assert "checkpoint 3" not in told


@pytest.mark.parametrize(("problem", "saved"), [(MemoryError(), ["checkpoint 2", "saved 2"]), (ValueError(), [])])
def test_an_evaluation_that_the_allocator_refuses_costs_no_step(problem, saved):
    def evaluation(step):
        raise problem

    told = []
    with pytest.raises(type(problem)):
        trained(evaluate=Every(steps=2), evaluation=evaluation, told=told)
    assert told == [1, 2, *saved, "closed"]


def finished(**report):
    """What is logged of a step with this report."""
    log = {}

    flight = loop.InFlight(SimpleNamespace(step=log.__setitem__))
    flight.add(7, {"loss": 1.0, "gradient_norm": 1.0} | report)
    flight.land()
    return log[7]


def test_a_step_that_overflowed_in_float16_has_no_norm_and_is_no_reason_to_stop_while_its_scale_can_be_halved():
    for scale in (loop.SMALLEST * 2, 1024.0):
        of_parts = {"gradient_norm/blocks/0": float("inf"), "gradient_norm/embedding": 1.0}
        assert finished(gradient_norm=float("inf"), scale=scale, **of_parts) == {"loss": 1.0, "scale": scale}
    taken = {"loss": 1.0, "gradient_norm": 1.0, "gradient_norm/blocks/0": 0.5, "scale": 1024.0}
    assert finished(**taken) == taken
    with pytest.raises(StoppedError, match="step 7: the loss is 1 and the gradient's norm inf"):
        finished(gradient_norm=float("inf"), scale=loop.SMALLEST)


def test_a_report_is_numbers_and_means_of_what_counts():
    found = finished(accuracy=LossSum(3.0, 4.0), never=LossSum(0.0, 0.0), scale=jnp.float32(2.0))
    assert found == {"accuracy": 0.75, "loss": 1.0, "gradient_norm": 1.0, "scale": 2.0}


def test_while_one_step_from_the_heap_runs_the_numbers_of_the_one_before_are_logged(monkeypatch):
    """On a CPU, too. What is left is looked at after the first, and then as often as the memory in use is."""
    looks, ended, now = [], [], iter([100.0, 100.0 + 0.9 * memory.LOOK_SECONDS, 100.0 + 1.1 * memory.LOOK_SECONDS])
    monkeypatch.setattr(memory, "settle", lambda **_: looks.append(1) or 1)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(now)))

    flight = loop.InFlight(SimpleNamespace(step=lambda done, metrics: ended.append(done)), in_heap=True)
    for step in range(3):
        flight.add(step, {"loss": 1.0, "gradient_norm": 1.0})
        assert ended == list(range(step))
    flight.land()
    assert ended == [0, 1, 2]
    assert len(looks) == 2


@pytest.mark.parametrize(("limit", "under_way"), [(1, [0, 0, 0, 0]), (2, [1, 1, 1, 1]), (3, [1, 2, 2, 2])])
def test_no_more_steps_are_under_way_than_may_be(monkeypatch, limit, under_way):
    """Two where a backend says nothing of its own."""
    monkeypatch.setattr(loop, "IN_FLIGHT", {} if limit == 2 else {"cpu": limit})
    monkeypatch.setattr(memory, "settle", lambda **_: 1)
    ended, waiting = [], []

    flight = loop.InFlight(SimpleNamespace(step=lambda done, metrics: ended.append(done)))
    for step in range(4):
        flight.add(step, {"loss": 1.0, "gradient_norm": 1.0})
        waiting.append(step + 1 - len(ended))
    assert waiting == under_way
    flight.land()
    assert ended == [0, 1, 2, 3]


def test_an_evaluation_ends_between_batches_once_it_is_stopped():
    evaluated = []

    def evaluate(_params, batch):
        evaluated.append(batch)
        return {"loss": (1.0, 1.0)}

    with pytest.raises(EvaluationStopped):
        summed(iter([{}] * 5), evaluate, None, lambda: len(evaluated) == 2)
    assert len(evaluated) == 2
