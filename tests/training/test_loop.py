"""The loop between steps: what an evaluation comes to, which checkpoint is the best, what is given back."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from plimsoll.errors import StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.interruption import Interruption
from plimsoll.training import loop, memory
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.loop import run_steps, summed
from plimsoll.training.program import Executables
from plimsoll.training.schedule import Schedule
from plimsoll.types import LossSum


class NoData:
    def __next__(self):
        return {}

    def state(self):
        return {}


class Silent:
    def step(self, done, metrics): ...
    def evaluation(self, done, metrics): ...
    def saved(self, done): ...


class Recording:
    """A log that keeps what it is told, in order."""

    def __init__(self):
        self.told = []

    def step(self, done, metrics):
        self.told.append(("step", done, metrics["loss"]))

    def evaluation(self, done, metrics):
        self.told.append(("evaluation", done, metrics["validation_loss"]))

    def saved(self, done):
        self.told.append(("saved", done))


def run(folder, evaluations, log=None, diverges_at=0, evaluate_every=1, stops_after=0, **schedule):
    """A step that only counts: the checkpoints that are left. The loss is the step's number, NaN from `diverges_at`.
    After `stops_after` steps it is over its budget."""
    taken = 0
    count = jax.jit(lambda state: state | {"step": state["step"] + jnp.int32(1)}, donate_argnums=0)

    def step(state, _batch):
        nonlocal taken
        taken += 1
        state = count(state)
        diverged = diverges_at and int(state["step"]) >= diverges_at
        loss = jnp.float32("nan") if diverged else state["step"].astype(jnp.float32)
        return state, {"loss": loss, "gradient_norm": jnp.float32(1.0)}

    executables = Executables(init=None, step=step, evaluate=None, state=None)  # type: ignore[arg-type]
    answers, steps = iter(evaluations), len(evaluations)
    checkpoints = Checkpoints(RunFolder(folder), in_background=False)
    run_steps(
        {"step": jnp.int32(0), "params": {"weight": jnp.ones(3)}},
        NoData(),
        executables,
        Schedule(steps=steps, stop_at=steps, evaluate_every=evaluate_every, **schedule),
        checkpoints,
        lambda _params: next(answers),
        log or Silent(),
        Interruption(),
        over_budget=lambda: 0 < stops_after <= taken,
    )
    return checkpoints


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_steps_under_way_at_the_end_are_logged_before_the_last_evaluation_and_save(tmp_path, monkeypatch, in_flight):
    monkeypatch.setitem(loop.IN_FLIGHT, "cpu", in_flight)
    log = Recording()
    run(tmp_path, [{"validation_loss": 1.0}] * 5, log, evaluate_every=0)
    assert log.told == [*(("step", n, float(n)) for n in range(1, 6)), ("evaluation", 5, 1.0), ("saved", 5)]
    stopped = Recording()
    run(tmp_path / "stopped", [{"validation_loss": 1.0}] * 5, stopped, evaluate_every=0, stops_after=3)
    assert stopped.told == [*(("step", n, float(n)) for n in range(1, 4)), ("saved", 3)]


@pytest.mark.parametrize(
    ("by_clock", "save_seconds", "saves"),
    [(True, 0, [2, 8, 14, 20]), (True, 25, [2, 12, 20]), (False, 0, [20])],
    ids=["soon, then every 5 minutes", "less often where it takes long", "only by steps"],
)
def test_steps_of_fifty_seconds_are_saved_by_the_clock(tmp_path, monkeypatch, by_clock, save_seconds, saves):
    now, log = [0.0], Recording()
    told = log.saved

    def passes(seconds):
        now[0] += seconds

    def saved(done):
        told(done)
        passes(save_seconds)

    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log, "step", lambda done, metrics: passes(50))
    monkeypatch.setattr(log, "saved", saved)
    run(tmp_path, [{"validation_loss": 1.0}] * 20, log, evaluate_every=0, save_by_clock=by_clock)
    assert [done for kind, done, *_ in log.told if kind == "saved"] == saves


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("evaluate_every", [1, 0])
def test_a_step_that_diverged_is_neither_evaluated_nor_saved_even_if_it_is_still_under_way(
    tmp_path, monkeypatch, in_flight, evaluate_every
):
    monkeypatch.setitem(loop.IN_FLIGHT, "cpu", in_flight)
    log = Recording()
    with pytest.raises(StoppedError, match=r"step 3: the loss is nan"):
        run(tmp_path, [{"validation_loss": 1.0}] * 6, log, 3, evaluate_every, save_every=1)
    assert {number for kind, number, *_ in log.told if kind != "step"} == {1, 2}
    assert {*RunFolder(tmp_path).saved_steps()} <= {1, 2}


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
    mean_of_means = (0 / 1 + 3 / 3 + 18 / 6) / 3
    assert told["validation_loss"] != pytest.approx(mean_of_means)


def test_library_pages_are_given_back_before_and_after_every_evaluation_and_after_every_save(tmp_path, monkeypatch):
    """What they brought would be part of the peak of the steps that follow."""
    events = []
    monkeypatch.setattr(memory, "give_back_libraries", lambda: events.append("given back"))
    monkeypatch.setattr(memory, "trim_heap", lambda: None)
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setenv(memory.GIVES_BACK, "1")

    class Evaluations(list):
        def __iter__(self):
            for answer in super().__iter__():
                events.append("evaluated")
                yield answer

    run(tmp_path, Evaluations([{"validation_loss": 1.0}, {"validation_loss": 2.0}]))
    assert events == 2 * ["given back", "evaluated", "given back", "given back"]  # saved: the best, and the last


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (1, [1, 2, 3, 4, 5, 6, 7]),
        (3, [3, 6, 7]),
        (2.5, [3, 5, 7]),
        (0.4, [1, 2, 3, 4, 5, 6, 7]),
        (7, [7]),
        (9, [7]),
        (0, [7]),
    ],
)
def test_what_is_done_every_so_many_steps_is_due_in_the_step_that_completes_them_and_at_the_end(every, due):
    schedule = Schedule(steps=9, stop_at=7)
    assert [step for step in range(1, 8) if schedule.due(every, step)] == due


class Kept:
    """Checkpoints that only note what they are told."""

    def __init__(self, told):
        self.told, self.best_step = told, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.told.append("closed")

    def save(self, step, state, position):
        self.told.append(f"checkpoint {step}")


class Telling(Silent):
    def __init__(self, told):
        self.told = told

    def evaluation(self, done, metrics):
        self.told.append(f"evaluation {done}")

    def saved(self, done):
        self.told.append(f"saved {done}")


@pytest.fixture
def untrimmed(monkeypatch):
    """Nothing is given back here: that takes longer than all else."""
    monkeypatch.setattr(memory, "trim", lambda: None)


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
    **of,
):
    """Steps that do nothing but `during`: what was told, in order, the end, and what is marked as best."""
    told = [] if told is None else told
    checkpoints, report = Kept(told), {"loss": 1.0, "gradient_norm": 1.0}

    def step(state, _batch):
        step = state["step"] + 1
        told.append(step)
        during(step)
        return state | {"step": step}, report

    def evaluate(_params):
        return {"validation_loss": 1.0} if evaluation is None else evaluation(told[-1])

    _, ended = run_steps(
        {"step": first, "params": {}}, NoData(), Executables(init=None, step=step, evaluate=None, state=None),
        Schedule(steps=9, stop_at=stop_at, **of), checkpoints, evaluate, Telling(told), interruption or Interruption(),
        over_budget=over_budget, last_evaluated=last_evaluated,
    )  # fmt: skip
    return told, ended, checkpoints.best_step


AT_THE_END = ["evaluation 4", "checkpoint 4", "saved 4", "closed"]


@pytest.mark.usefixtures("untrimmed")
def test_at_the_end_a_session_evaluates_and_saves_once():
    told, ended, marked = trained()
    assert told == [1, 2, 3, 4, *AT_THE_END]
    assert (ended.step, ended.signal, ended.over) == (4, None, False)
    assert marked == 4


@pytest.mark.usefixtures("untrimmed")
def test_what_was_evaluated_or_saved_in_the_last_step_is_not_done_again():
    told, *_ = trained(evaluate_every=2, save_every=4)
    assert told == [
        1, 2, "evaluation 2", "checkpoint 2", "saved 2", 3, 4, "evaluation 4", "checkpoint 4", "saved 4", "closed"
    ]  # fmt: skip


@pytest.mark.usefixtures("untrimmed")
def test_when_time_is_up_a_session_evaluates_and_saves_the_step_it_is_at(monkeypatch):
    """It begins at 100 s and has 10: at 110 they are over."""
    seconds = iter([100.0, 103.0, 109.9, 110.0])
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(seconds))
    told, ended, _ = trained(stop_after_seconds=10.0)
    assert told == [1, 2, "evaluation 2", "checkpoint 2", "saved 2", "closed"]
    assert (ended.step, ended.signal, ended.over) == (2, None, False)


@pytest.mark.usefixtures("untrimmed")
@pytest.mark.parametrize("number", [2, 15])
@pytest.mark.parametrize("at", [2, 4])
def test_a_signal_saves_the_step_it_came_in_and_evaluates_nothing_that_is_not_due(number, at):
    interruption = Interruption()

    def during(step):
        if step == at:
            interruption.signal = number

    told, ended, _ = trained(during=during, interruption=interruption)
    due = ["evaluation 4"] if at == 4 else []  # in the last step, before anybody looks for a signal
    assert told == [*range(1, at + 1), *due, f"checkpoint {at}", f"saved {at}", "closed"]
    assert (ended.step, ended.signal, ended.over) == (at, number, False)


@pytest.mark.usefixtures("untrimmed")
@pytest.mark.parametrize(("at", "evaluate_every"), [(2, 2), (4, 2), (4, 0)])
def test_a_signal_during_an_evaluation_ends_that_and_the_next_session_begins_with_it(at, evaluate_every):
    interruption = Interruption()

    def evaluation(step):
        if step < at:
            return {"validation_loss": 1.0}
        interruption.signal = 15
        raise loop.EvaluationStopped(15)

    told, ended, _ = trained(evaluation=evaluation, interruption=interruption, evaluate_every=evaluate_every)
    assert told[-4:] == [at, f"checkpoint {at}", f"saved {at}", "closed"]
    assert (ended.step, ended.signal) == (at, 15)
    told = [at]
    trained(first=at, told=told, evaluate_every=evaluate_every, last_evaluated=at - 2)
    rest = ["closed"] if at == 4 else [3, 4, *AT_THE_END]
    assert told == [at, f"evaluation {at}", *rest]


@pytest.mark.usefixtures("untrimmed")
def test_what_was_evaluated_before_it_was_saved_is_not_evaluated_again():
    assert trained(first=2, evaluate_every=2, last_evaluated=2)[0] == [3, 4, *AT_THE_END]
    assert trained(first=1, evaluate_every=2, last_evaluated=0)[0][0] == 2
    assert trained(first=0, evaluate_every=2, last_evaluated=0)[0][0] == 1


@pytest.mark.usefixtures("untrimmed")
def test_of_several_processes_a_signal_in_the_last_step_is_no_reason_until_all_agree(monkeypatch):
    """Each of them evaluates then, or none would: an evaluation needs all of them."""
    monkeypatch.setattr(loop, "Agreement", lambda: agreed)

    def agreed(request):
        return 0

    agreed.alone = False
    interruption = Interruption()
    interruption.signal = 15
    told, ended, _ = trained(interruption=interruption)
    assert told == [1, 2, 3, 4, *AT_THE_END]
    assert ended.signal is None


@pytest.mark.usefixtures("untrimmed")
def test_over_its_budget_a_session_saves_and_evaluates_nothing():
    answers = iter([False, False, True])
    told, ended, _ = trained(over_budget=lambda: next(answers))
    assert told == [1, 2, "checkpoint 2", "saved 2", "closed"]
    assert (ended.step, ended.signal, ended.over) == (2, None, True)


@pytest.mark.usefixtures("untrimmed")
def test_a_signal_is_told_before_time_and_time_before_the_budget(monkeypatch):
    interruption = Interruption()
    interruption.signal = 2
    monkeypatch.setattr(loop.time, "monotonic", lambda: 0.0)
    ends = [
        trained(first=1, interruption=interruption, over_budget=lambda: True, stop_after_seconds=0.0)[1],
        trained(first=1, over_budget=lambda: True, stop_after_seconds=0.0)[1],
        trained(first=1, over_budget=lambda: True)[1],
    ]
    assert [(ended.step, ended.signal, ended.over) for ended in ends] == [
        (1, 2, False),
        (1, None, False),
        (1, None, True),
    ]


@pytest.mark.usefixtures("untrimmed")
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

    told, _, marked = trained(evaluate_every=1, best_by=best_by, evaluation=evaluation)
    assert marked == best
    assert f"checkpoint {best}" in told
    assert "checkpoint 3" not in told


@pytest.mark.usefixtures("untrimmed")
@pytest.mark.parametrize(("problem", "saved"), [(MemoryError(), ["checkpoint 2"]), (ValueError(), [])])
def test_an_evaluation_that_the_allocator_refuses_costs_no_step(problem, saved):
    def evaluation(step):
        raise problem

    told = []
    with pytest.raises(type(problem)):
        trained(evaluate_every=2, evaluation=evaluation, told=told)
    assert told == [1, 2, *saved, "closed"]


def finished(**report):
    """What is logged of a step with this report."""
    log = {}

    class Noting(Silent):
        def step(self, done, metrics):
            log[done] = metrics

    flight = loop._InFlight(Noting())
    flight.add(7, {"loss": 1.0, "gradient_norm": 1.0} | report)
    flight.land()
    return log[7]


def test_a_step_that_overflowed_in_float16_has_no_norm_and_is_no_reason_to_stop_while_its_scale_can_be_halved():
    for scale in (loop.SMALLEST * 2, 1024.0):
        assert finished(gradient_norm=float("inf"), scale=scale) == {"loss": 1.0, "scale": scale}
    assert finished(scale=1024.0) == {"loss": 1.0, "gradient_norm": 1.0, "scale": 1024.0}
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

    class Noting(Silent):
        def step(self, done, metrics):
            ended.append(done)

    flight = loop._InFlight(Noting(), in_heap=True)
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

    class Noting(Silent):
        def step(self, done, metrics):
            ended.append(done)

    flight = loop._InFlight(Noting())
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

    with pytest.raises(loop.EvaluationStopped):
        summed(iter([{}] * 5), evaluate, None, lambda: len(evaluated) == 2)
    assert len(evaluated) == 2
