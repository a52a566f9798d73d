"""What the time that planning is given ends, what it does not, and what Ctrl-C takes; by a clock that answers move."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from planner_examples import ABLE, Card, off_by, problem
from plimsoll.errors import BudgetError
from plimsoll.planner import bytes as plan_bytes
from plimsoll.planner.bytes import Margin
from plimsoll.planner.deadline import MOST_SECONDS, SHARE_OF_TRAINING, Deadline
from plimsoll.planner.objectives import SMALL
from plimsoll.planner.search import Desk, find_fastest, find_smallest
from plimsoll.planner.space import same_step
from plimsoll.units import MIB

CUT_SHORT = "found within the time limit of planning,"
HALVES = off_by(0.9, [0.0, 0.5, 1.0])


@pytest.fixture(autouse=True)
def _kept_free(monkeypatch):
    """Budgets of these tests are of fake processes, of which 16 MiB are kept free."""
    monkeypatch.setattr(plan_bytes, "PREDICTED", Margin(least_bytes=16 * MIB, largest_share=0.95))


def within(seconds, budget, compiler, find=find_fastest, **changes):
    levers = {"supported": ABLE, "layerwise": 2, "numerics": "mixed"} | changes
    desk = Desk(compiler, deadline=Deadline(seconds, compiler.clock))
    return find(problem(budget * MIB, **levers), desk)


@settings(deadline=None, max_examples=examples(30, usual=10))
@given(
    budget=st.integers(220, 700),
    seconds=st.floats(0, 120),
    loop=st.sampled_from([1e-9, 1e-3, 0.02, 0.05]),
    measure=st.booleans(),
)
def test_when_the_time_is_up_the_best_plan_is_taken(budget, seconds, loop, measure):
    compiler = Card(loop_seconds=loop, traced=HALVES)
    planned = within(seconds, budget, compiler, measure=measure)
    assert planned.ledger.fits
    verbs = {verb for verb, step in compiler.asked if same_step(step) == same_step(planned.plan)}
    assert {"analyse", "prepare"} <= verbs
    if CUT_SHORT not in planned.reason:
        rival = within(math.inf, budget, Card(loop_seconds=loop, traced=HALVES), measure=measure)
        assert planned.step_seconds <= rival.step_seconds * (1 + SMALL), "as with all the time there is"
    else:
        assert compiler.now >= seconds - compiler.compile_seconds - 6


def test_more_time_gives_no_slower_plan():
    seconds, compiles = [], []
    for limit in (5, 15, 30, 60, 10_000):
        compiler = Card(loop_seconds=0.02, traced=HALVES)
        planned = within(limit, 700, compiler)
        seconds.append(planned.step_seconds)
        compiles.append(planned.compiles)
    assert compiles == sorted(compiles)
    assert seconds[-1] <= min(seconds)


@pytest.mark.parametrize(
    ("budget", "measure", "compiles"), [(400, False, 1), (700, False, 1), (700, True, 2), (2_000, False, 1)]
)
def test_where_the_time_is_used_up_before_any_plan_is_known_one_is_looked_at(budget, measure, compiles):
    """A busy machine may need all of it for the first trace."""
    planned = within(0, budget, Card(traced=HALVES, loop_seconds=0.3), measure=measure)
    assert planned.ledger.fits
    assert planned.compiles == compiles


@pytest.mark.parametrize("budget", [240, 300, 400, 600])
def test_what_was_compiled_is_timed_though_no_time_is_left_for_another_compile(budget):
    compiler = Card(loop_seconds=1e-9, traced=HALVES, slower=(1.2, 1.0, 0.9, 1.1))
    planned = within(22, budget, compiler, measure=True)
    compiled = {same_step(step) for verb, step in compiler.asked if verb == "analyse"}
    timed = {same_step(step) for verb, step in compiler.asked if verb == "measure"}
    assert timed == compiled
    assert len(timed) == 2
    assert f"{CUT_SHORT} of 2 plans" in planned.reason
    assert compiler.now <= 22


@pytest.mark.parametrize("budget", [320, 400, 500])
def test_late_the_cheapest_plan_that_is_expected_to_fit_is_taken_and_not_the_surest(budget):
    late = within(0, budget, Card(traced=HALVES, loop_seconds=0.02))
    whole = within(math.inf, budget, Card(traced=HALVES, loop_seconds=0.02))
    assert late.compiles == 1
    assert late.step_seconds <= 1.2 * whole.step_seconds


@pytest.mark.parametrize("seconds", [0, 10])
def test_a_budget_is_not_refused_because_the_time_is_up(seconds):
    assert within(seconds, 212, Card(traced=HALVES)).ledger.fits


def test_the_search_for_the_smallest_plan_ends_in_time_and_is_not_called_the_smallest_then():
    hurried, whole = Card(traced=HALVES), Card(traced=HALVES)
    reasons = [within(0, 700, hurried, find_smallest).reason, within(math.inf, 700, whole, find_smallest).reason]
    assert reasons[1].startswith("the smallest plan: it fits in ")
    assert hurried.now <= 8
    asked = [verb for verb, _ in hurried.asked]
    assert asked == ["analyse", "prepare"]


class Interrupted(Card):
    """By the user, at the question of this number."""

    at = 0

    def analyse(self, plan):
        if len(self.asked) >= self.at:
            raise KeyboardInterrupt
        return super().analyse(plan)


def test_ctrl_c_takes_the_best_plan_so_far():
    whole = Card(traced=HALVES)
    within(math.inf, 250, whole, measure=True)
    questions = [verb for verb, _ in whole.asked]
    assert questions.count("analyse") > 2, "there is something to interrupt"
    ends = []
    for at in range(len(questions)):
        compiler = Interrupted(traced=HALVES)
        compiler.at = at
        try:
            planned = within(math.inf, 250, compiler, measure=True)
        except KeyboardInterrupt:
            ends.append("nothing")
            continue
        assert planned.ledger.fits
        ends.append("early" if "found before planning was interrupted," in planned.reason else "whole")
    assert ends[0] == "nothing"
    assert "early" in ends
    assert ends == sorted(ends, key=["nothing", "early", "whole"].index)


def test_an_interrupted_search_for_the_floor_refuses_nothing():
    """What is the smallest by then may be far from the floor: whether the budget can be held, nobody knows."""
    whole = Card(traced=off_by(0.55, [0.0]))
    with pytest.raises(BudgetError):
        within(math.inf, 100, whole)
    questions = [verb for verb, _ in whole.asked]
    for at in range(questions.index("analyse") + 1, len(questions)):
        compiler = Interrupted(traced=off_by(0.55, [0.0]))
        compiler.at = at
        with pytest.raises((KeyboardInterrupt, BudgetError)) as ended:
            within(math.inf, 100, compiler)
        assert ended.type is KeyboardInterrupt or len(compiler.asked) == len(questions)


def test_what_a_refusal_may_advise_is_looked_for_no_longer_than_a_plan():
    """Each of the pins and of the numerics costs a compile."""
    pins = {"micro_batch": 16, "remat": "none", "precision": "float32"}
    texts = []
    for seconds in (math.inf, 5):
        compiler = Card(traced=HALVES)
        with pytest.raises(BudgetError) as refused:
            within(seconds, 212, compiler, pins=pins)
        texts.append(str(refused.value))
    assert "leave out --micro-batch" in texts[0]
    assert "leave out" not in texts[1]


def test_how_far_a_plan_may_be_from_the_fastest_is_said_as_it_is():
    """Where the time was up before the fastest was known, that is more than what counts as equal."""
    for seconds in (0, 5, 10, 20, 40):
        planned = within(seconds, 700, Card(traced=HALVES, loop_seconds=0.1))
        fastest = min((each.step_seconds for each in planned.alternatives), default=math.inf)
        said = re.match(r"within (\d+)% of the fastest", planned.reason)
        share = int(said[1]) / 100 if said else 0.0
        assert planned.step_seconds <= fastest * (1 + share) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("is_patient", "training", "seconds"),
    [(True, 2_000.0, 2_000 * SHARE_OF_TRAINING), (True, 1e6, MOST_SECONDS), (True, 10.0, 30.0), (False, 1e6, 30.0)],
)
def test_a_run_that_takes_long_may_be_planned_for_longer(is_patient, training, seconds):
    deadline = Deadline(30.0, lambda: 0.0, is_patient=is_patient)
    deadline.extend_for(training)
    assert deadline.seconds == seconds


def test_what_is_left_is_enough_for_another_compile():
    now = [0.0]
    deadline = Deadline(30.0, lambda: now[0])
    assert deadline.left() == 24
    deadline.compile_seconds = 10
    now[0] = 14.0
    assert deadline.left() == 0
    assert deadline.is_over()
    assert Deadline().left() is None
