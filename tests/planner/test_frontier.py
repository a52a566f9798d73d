"""What another budget would buy, among plans whose bytes and seconds are known."""

from planner_examples import PROCESS, FakeCompiler, problem
from plimsoll.planner.search import search
from plimsoll.units import GIB, MIB


def found(budget, **changes):
    compiler = FakeCompiler(loop_seconds=0.05)  # small micro-batches are slow
    return search(problem(budget, **changes), compiler, lambda text: None), compiler


def test_more_memory_buys_the_plan_that_it_would_have_found():
    tight, _ = found(PROCESS + 300 * MIB)
    roomy, _ = found(PROCESS + 300 * MIB + GIB)
    _, more = tight.other_budgets
    assert more.budget_bytes == PROCESS + 300 * MIB + GIB
    assert more.plan == roomy.plan
    assert tight.plan != roomy.plan
    assert more.step_ratio < 1


def test_where_everything_fits_more_memory_buys_nothing():
    roomy, _ = found(4 * GIB)
    _, more = roomy.other_budgets
    assert more.plan == roomy.plan
    assert more.step_ratio == 1
    assert more.peak_bytes == roomy.ledger.predicted_peak_bytes


def test_less_memory_says_so_where_nothing_that_was_looked_at_fits():
    tight, _ = found(PROCESS + 150 * MIB)
    less, _ = tight.other_budgets
    assert less.budget_bytes == (PROCESS + 150 * MIB) // 2
    assert (less.plan, less.peak_bytes, less.step_ratio) == (None, None, None)


def test_a_gib_less_gives_a_plan_within_it():
    roomy, _ = found(GIB + PROCESS + 300 * MIB)
    less, _ = roomy.other_budgets
    assert less.budget_bytes == PROCESS + 300 * MIB
    assert less.plan is not None
    assert less.peak_bytes <= less.budget_bytes


def test_what_the_clock_found_slower_is_not_bought_by_more_memory():
    compiler = FakeCompiler(loop_seconds=0.05, seconds={(16, "none"): 1.0, (8, "none"): 1.0})
    timed = search(problem(4 * GIB, measure=True), compiler, lambda text: None)
    assert timed.plan.micro_batch < 8  # by the rates 16 at once is fastest
    less, more = timed.other_budgets
    assert (less.plan, more.plan) == (timed.plan, timed.plan)
    assert more.step_ratio == 1


def test_nothing_is_compiled_or_rehearsed_for_it(monkeypatch):
    with_it, compiler = found(PROCESS + 300 * MIB)
    asked = list(compiler.asked)
    monkeypatch.setattr("plimsoll.planner.search.other_budgets", lambda *_: ())
    _, compiler = found(PROCESS + 300 * MIB)
    assert compiler.asked == asked
    assert with_it.other_budgets


def test_it_goes_through_json():
    tight, _ = found(PROCESS + 150 * MIB)
    less, more = tight.to_dict()["other_budgets"]
    assert less["plan"] is None
    assert more["plan"]["micro_batch"] == tight.other_budgets[1].plan.micro_batch
