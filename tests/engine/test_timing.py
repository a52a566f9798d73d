"""Plans that are timed: in turn, by the median, on one state for plans whose states are alike."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from plimsoll.engine import timing
from plimsoll.engine.timing import is_clear, step_seconds

STRICT = True


@dataclass
class Clock:
    """A clock that only steps move, and what was called."""

    seconds: float = 0.0
    calls: list[str] = field(default_factory=list)
    load: dict[int, float] = field(default_factory=dict)
    """Number of a call to the seconds that others take then."""

    def __call__(self):
        return self.seconds


@dataclass
class Fake:
    """A candidate whose step takes so long."""

    name: str
    seconds: float
    clock: Clock
    kind: str = "alike"
    batch: None = None

    def init(self, seed):
        assert seed == np.uint32(0)
        self.clock.calls.append(f"init {self.name}")
        return self.kind

    def step(self, state, batch):
        assert state == self.kind
        self.clock.seconds += self.seconds + self.clock.load.get(len(self.clock.calls), 0.0)
        self.clock.calls.append(self.name)
        return state, 0.0


def timed(clock, *candidates, queued=1):
    return step_seconds([Fake(*candidate, clock=clock) for candidate in candidates], queued=queued, clock=clock)


def test_plans_take_turns_and_the_median_counts():
    clock = Clock(load={7: 100.0})
    assert timed(clock, ("a", 0.3), ("b", 0.29)) == pytest.approx([0.3, 0.29])
    assert clock.calls[:5] == ["init a", "a", "b", "a", "b"]
    assert clock.calls.count("a") == clock.calls.count("b") >= 4


def test_an_order_that_is_clear_ends_it():
    clock = Clock()
    timed(clock, ("a", 0.1), ("b", 0.2))
    assert clock.calls.count("a") == 3


def test_short_steps_are_timed_for_longer():
    clock = Clock()
    assert timed(clock, ("a", 1e-3), queued=5) == pytest.approx([1e-3])
    assert clock.calls.count("a") % 5 == 0
    assert clock.seconds >= timing.TIMED_SECONDS


def test_long_steps_are_timed_once():
    clock = Clock()
    timed(clock, ("a", 60.0), ("b", 59.0))
    assert clock.calls == ["init a", "a", "b"]


def test_plans_with_other_states_begin_anew():
    clock = Clock()
    first, second = Fake("a", 0.1, clock), Fake("b", 0.2, clock, kind="other")
    assert step_seconds([first, second], clock=clock) == pytest.approx([0.1, 0.2])
    assert clock.calls[:6] == ["init a", "a", "init b", "b", "init a", "a"]


def test_nothing_is_clear_before_the_first_round():
    assert not is_clear([[]], 1000.0)
    assert is_clear([[1.0]], 1000.0)
