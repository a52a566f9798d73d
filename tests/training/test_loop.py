"""The loop between steps: what an evaluation comes to, which checkpoint is the best, what is given back."""

import jax
import jax.numpy as jnp
import pytest

from plimsoll.errors import StoppedError
from plimsoll.processes.interruption import Interruption
from plimsoll.training import loop, memory
from plimsoll.training.checkpoint import Checkpoints
from plimsoll.training.loop import Schedule, run_steps, summed
from plimsoll.training.program import Executables
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
    checkpoints = Checkpoints(folder, in_background=False)
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


def test_every_step_evaluation_and_save_is_logged_once_and_in_order(tmp_path):
    log = Recording()
    run(tmp_path, [{"validation_loss": 10.0 + number} for number in range(3)], log=log)
    assert [entry for entry in log.told if entry[0] == "step"] == [("step", n, float(n)) for n in (1, 2, 3)]
    assert [entry for entry in log.told if entry[0] == "evaluation"] == [("evaluation", n, 9.0 + n) for n in (1, 2, 3)]
    assert ("saved", 3) in log.told
    for number in (1, 2, 3):
        assert log.told.index(("step", number, float(number))) < log.told.index(("evaluation", number, 9.0 + number))


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_steps_under_way_at_the_end_are_logged_before_the_last_evaluation_and_save(tmp_path, monkeypatch, in_flight):
    monkeypatch.setitem(loop.IN_FLIGHT, "cpu", in_flight)
    log = Recording()
    run(tmp_path, [{"validation_loss": 1.0}] * 5, log, evaluate_every=0)
    assert log.told == [*(("step", n, float(n)) for n in range(1, 6)), ("evaluation", 5, 1.0), ("saved", 5)]
    stopped = Recording()
    run(tmp_path / "stopped", [{"validation_loss": 1.0}] * 5, stopped, evaluate_every=0, stops_after=3)
    assert stopped.told == [*(("step", n, float(n)) for n in range(1, 4)), ("saved", 3)]


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
    assert {saved.step for saved in Checkpoints(tmp_path, in_background=False).all()} <= {1, 2}


@pytest.mark.parametrize(
    ("evaluations", "best_by", "best"),
    [
        ([{"validation_loss": loss} for loss in (3.0, 1.0, 2.0)], "loss", 2),
        ([{"validation_loss": loss} for loss in (1.0, 2.0, 3.0)], "loss", 1),
        ([{"validation_loss": loss, "validation_f1": f1} for loss, f1 in ((1, 0.2), (2, 0.5), (3, 0.4))], "f1", 2),
        ([{"validation_loss": loss, "validation_f1": f1} for loss, f1 in ((3, 0.5), (2, 0.5), (1, 0.4))], "f1", 1),
    ],
)
def test_the_best_checkpoint_has_the_lowest_loss_or_the_most_of_the_metric_that_is_named(
    tmp_path, evaluations, best_by, best
):
    """Of equals the first; what was best when it was evaluated is saved, whatever --save-every says."""
    checkpoints = run(tmp_path, evaluations, best_by=best_by)
    marked = checkpoints.best()
    assert marked is not None
    assert (marked["step"], marked["validation_loss"]) == (best, evaluations[best - 1]["validation_loss"])
    assert best in {saved.step for saved in checkpoints.all()}


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

    class Evaluations(list):
        def __iter__(self):
            for answer in super().__iter__():
                events.append("evaluated")
                yield answer

    run(tmp_path, Evaluations([{"validation_loss": 1.0}, {"validation_loss": 2.0}]))
    assert events == 2 * ["given back", "evaluated", "given back", "given back"]  # saved: the best, and the last
