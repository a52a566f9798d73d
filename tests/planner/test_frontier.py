"""What another budget would buy, and the plans that nothing beats, of plans whose bytes and seconds are known."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from planner_examples import PROCESS, FakeCompiler, problem, search
from plimsoll.planner import bytes as plan_bytes
from plimsoll.planner.bytes import Margin
from plimsoll.planner.objectives import NEAR, SMALL
from plimsoll.planner.space import same_step
from plimsoll.units import MIB


@pytest.fixture(autouse=True)
def _kept_free(monkeypatch):
    """Budgets of these tests are of fake processes, of which 16 MiB are kept free."""
    monkeypatch.setattr(plan_bytes, "PREDICTED", Margin(least_bytes=16 * MIB, largest_share=0.95))


def found(budget, **changes):
    compiler = FakeCompiler(loop_seconds=0.05)  # small micro-batches are slow
    return search(problem(budget, **changes), compiler), compiler


def test_nothing_is_asked_for_either(monkeypatch):
    with_them, compiler = found(PROCESS + 300 * MIB)
    asked = list(compiler.asked)
    monkeypatch.setattr("plimsoll.planner.explain.frontier", lambda *_: ())
    without, compiler = found(PROCESS + 300 * MIB)
    assert compiler.asked == asked
    assert without.frontier == ()
    assert len(with_them.frontier) > 1


BUDGETS = st.integers(PROCESS // MIB + 120, PROCESS // MIB + 900)


@settings(deadline=None, max_examples=examples(30))
@given(budget=BUDGETS, loop=st.sampled_from([1e-9, 1e-3, 0.05]), off=st.sampled_from([0.8, 1.0, 1.3]))
def test_of_the_plans_that_nothing_beats_a_larger_one_is_faster(budget, loop, off):
    compiler = FakeCompiler(loop_seconds=loop, traced=lambda plan: off)
    planned = search(problem(budget * MIB), compiler)
    points = planned.frontier
    (chosen,) = (point for point in points if point.chosen)
    assert same_step(chosen.plan) == same_step(planned.plan)
    assert chosen.compiled
    assert chosen.needed_bytes <= budget * MIB
    assert chosen.step_seconds == planned.step_seconds
    sizes = [point.needed_bytes for point in points]
    assert sizes == sorted(sizes)
    others = [(point.needed_bytes, point.step_seconds) for point in points if not point.chosen]
    assert all(one[0] < next_[0] and one[1] > next_[1] for one, next_ in itertools.pairwise(others))
    assert all(point.step_seconds >= chosen.step_seconds for point in points if point.needed_bytes <= budget * MIB)
    asked = {same_step(plan) for verb, plan in compiler.asked if verb == "analyse"}
    assert all((same_step(point.plan) in asked) == point.compiled for point in points)


def test_the_bytes_of_a_point_buy_its_time():
    """Of a compiler whose traces are exact; less what the search calls equal. Above the budget a byte less does not."""
    planned, _ = found(PROCESS + 400 * MIB)
    assert len(planned.frontier) > 3
    for point in planned.frontier:
        bought, _ = found(point.needed_bytes)
        as_believed = point.step_seconds * 1.001  # between micro-batches that were traced
        assert bought.step_seconds <= as_believed * NEAR / (1 - SMALL)
    more = [point for point in planned.frontier if point.needed_bytes > PROCESS + 400 * MIB]
    assert len(more) == 2
    for point in more:
        assert found(point.needed_bytes - 1)[0].step_seconds > point.step_seconds
