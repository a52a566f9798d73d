"""While a plan is looked for, what is being done is said wherever nothing else was said for a while."""

import time

import pytest

from planner_examples import STATIC, plan
from plimsoll.api.planning import progress
from plimsoll.api.planning.progress import SpokenPool


class Slow:
    """A child that takes its time."""

    doing, compiles, seconds_saved = "compiling", 0, 0.0

    def __init__(self, seconds):
        self.seconds = seconds

    def answer(self, request):
        time.sleep(self.seconds)
        return STATIC

    def stop(self):
        pass


@pytest.fixture
def spoken(monkeypatch):
    """What was said, and when."""
    monkeypatch.setattr(progress, "SILENCE", 0.05)
    return []


def test_a_long_answer_is_said_again_and_again_with_what_it_is(spoken):
    with SpokenPool([Slow(0.4)], spoken.append) as pool:
        pool.static()
        pool.say("the state is known")
        pool.analyse(plan(micro_batch=8, accumulation=2, remat="block"))
    at = spoken.index("the state is known")
    assert len(spoken[:at]) >= 2
    assert all(text.startswith("computing the bytes of the state") for text in spoken[:at])
    assert len(spoken[at + 1 :]) >= 2
    assert all(text.startswith("compiling micro-batch 8, remat block") for text in spoken[at + 1 :])
    assert all(text.endswith(" s so far") for text in spoken if text != "the state is known")


def test_quick_answers_are_not_spoken_of(spoken):
    with SpokenPool([Slow(0.0)], spoken.append) as pool:
        for _ in range(20):
            pool.static()
        time.sleep(0.2)  # nothing is being done
    assert spoken == []
