"""Plans compiled and timed on the card that is here; this CPU's devices stand in for the card."""

import dataclasses

import jax
import pytest

from making import made
from plimsoll.engine import timing
from plimsoll.engine.answers import Answers
from plimsoll.engine.backends import card as backend
from plimsoll.engine.backends.card import Card
from plimsoll.errors import PlimsollError
from plimsoll.planned import Plan
from plimsoll.planner import types
from plimsoll.planner.chips import chip
from plimsoll.planner.types import Rates
from plimsoll.units import GIB
from subjects import subject_of

RECIPE = made(
    "stories", dataset_id="there-is-no-such/text", width=16, layers=1, heads=2, vocab_size=300, seq_len=16, batch_size=4
)


def plan(**changes):
    levers = {"remat": "none", "loss_chunk": 0, "precision": "float32", "prefetch": 0, "async_save": False}
    return Plan.from_dict({"chip": "rtx4090", "micro_batch": 4, "accumulation": 1, **levers, **changes})


def subject(kind="cpu", **changes):
    card = types.Card(kind, 24 * GIB)
    return subject_of(RECIPE, "rtx4090", card=card, chip=dataclasses.replace(chip("rtx4090"), **changes))


def test_plans_are_compiled_for_the_device_that_is_here_and_run_on_it(monkeypatch):
    monkeypatch.setattr(timing, "TIMED_SECONDS", 0.0)
    answers = Answers(subject())
    assert answers.backend.devices is None, "the only one"
    (seconds,) = answers.backend.time(answers.steps, [plan()])
    assert 0 < seconds < 60
    analysis = answers.analyse(plan())
    assert analysis.source == "compiled"
    assert 0 < analysis.argument_bytes < analysis.argument_bytes + analysis.beyond_state_bytes
    held = answers.steps.static(1, plan().storage)
    assert analysis.argument_bytes == pytest.approx(held.state_bytes + held.batch_bytes, rel=0.01)


def test_a_cpu_does_not_take_the_cards_place_without_a_word():
    """JAX falls back to it where the card cannot be used."""
    with pytest.raises(PlimsollError, match="NVIDIA H200 of this machine, but JAX finds a cpu"):
        Card(subject(kind="NVIDIA H200"))


def test_a_step_that_fails_on_the_card_fails_the_question_and_leaves_nothing_behind(monkeypatch):
    """XLA's error where it comes from, the call of the compiled step; the next question is answered all the same."""
    answers, real = Answers(subject()), Card.compile
    monkeypatch.setattr(timing, "TIMED_SECONDS", 0.0)

    def failing(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    def compiled(self, lowered, **options):
        return failing if "jit_step" in lowered.as_text()[:200] else real(self, lowered, **options)

    with monkeypatch.context() as broken:
        broken.setattr(Card, "compile", compiled)
        with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE"):
            answers.backend.time(answers.steps, [plan()])
    (seconds,) = answers.backend.time(answers.steps, [plan()])
    assert seconds > 0


def test_rates_are_the_sheets_and_measured_where_there_is_none(monkeypatch):
    measured = Rates(flops={"float32": 1.0}, copy_bytes=1.0, first_touch_bytes=1.0, loop_seconds=0.0, source="here")
    monkeypatch.setattr(backend, "card_rates", lambda: measured)
    assert Card(subject()).rates().source == "data sheet"
    assert Card(subject(flops={})).rates() == measured
