"""Ranges of bytes and seconds, by what was answered about the nearest candidates."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_examples import FakeCompiler, problem
from plimsoll.planner.evidence import ALIKE, DOUBLED, ORDERED, UNSEEN, UNTIMED, Inquiry, Range, around
from plimsoll.planner.search import Desk, ask, begin
from plimsoll.units import GIB, MIB


@pytest.mark.parametrize(("limit", "share"), [(0, 0.0), (1, 0.0), (2, 0.25), (5, 1.0), (9, 1.0)])
def test_the_share_of_a_range_below_a_limit(limit, share):
    assert Range(1, 2, 5).share_below(limit) == share
    assert around(3.0).share_below(3.0) == 1.0


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 30))
def test_what_may_be_gained_is_no_more_than_to_the_least_and_no_less_than_to_the_most(low, width, limit):
    value = Range(low, low + width / 2, low + width)
    gain = value.gain_below(limit)
    assert max(0.0, limit - value.high) - 1e-9 <= gain <= max(0.0, limit - value.low) + 1e-9


class Filed(FakeCompiler):
    """A compiler of functions that training reads from files."""

    def analyse(self, plan):
        return replace(super().analyse(plan), is_filed=True, instructions=1_000)


@pytest.mark.parametrize("compiler", [FakeCompiler, Filed])
def test_the_process_of_a_step_weighs_the_same_traced_and_compiled(compiler):
    """Counted as traced and lowered, a step from a file weighs 12 MiB more: near the floor nothing else fitted."""
    desk = Desk(compiler())
    evidence = begin(problem(GIB, numerics="exact", supported=("remat",)), desk)
    first, *_ = evidence.space
    target = first.candidates[2]
    tell(evidence, desk, "trace", target)
    traced = evidence.needed(target).likely
    tell(evidence, desk, "compile", target)
    assert evidence.needed(target).likely == pytest.approx(traced, abs=2)


@pytest.fixture
def desk():
    return Desk(FakeCompiler(traced=lambda plan: 0.5))


@pytest.fixture
def evidence(desk):
    return begin(problem(GIB, numerics="exact", supported=("remat", "loss_chunk")), desk)


def tell(evidence, desk, verb, candidate):
    inquiry = Inquiry(verb, candidate)
    evidence.learn(inquiry, ask(inquiry, evidence, desk))


def test_bytes_follow_from_the_trace_then_from_other_levers_then_from_other_micro_batches(desk):
    """On a card, whose compiler treats all levers alike."""
    levers = {"numerics": "exact", "supported": ("remat", "loss_chunk")}
    evidence = begin(problem(GIB, platform="cuda", chip="h100", **levers), desk)
    first, *_, last = evidence.space
    (target,) = (each for each in first.candidates if each.micro == 4)
    for combination in (first, last):
        tell(evidence, desk, "trace", combination.candidates[0])
    traced = evidence.traced_bytes(target)
    assert evidence.temporaries(target) == Range(*(traced * share for share in UNSEEN))

    # Of other levers.
    other = last.candidates[1]
    tell(evidence, desk, "compile", other)
    ratio = evidence.byte_ratios()[other]
    low, likely, high = (size / traced for size in evidence.temporaries(target))
    assert (low, likely, high) == pytest.approx((ratio * (1 - ALIKE), ratio, ratio * (1 + ALIKE)))

    # Of the same levers, two doublings away.
    (near,) = (each for each in first.candidates if each.micro == 16)
    tell(evidence, desk, "compile", near)
    ratio = evidence.byte_ratios()[near]
    low, likely, high = (size / traced for size in evidence.temporaries(target))
    assert (low, likely, high) == pytest.approx((ratio * (1 - 2 * DOUBLED), ratio, ratio * (1 + 2 * DOUBLED)))

    # Its own.
    tell(evidence, desk, "compile", target)
    assert evidence.temporaries(target) == around(evidence.compiled[target].beyond_state_bytes)


def test_what_nobody_traced_needs_what_saves_more_and_takes_what_saves_less(evidence, desk):
    first, *_, last = evidence.space
    between = next(each for each in evidence.space if evidence.children[each] == [last])
    for combination in (first, last):
        tell(evidence, desk, "trace", combination.candidates[0])
    for candidate in between.candidates:
        for saving in candidate.among([last]):
            least = (1 - ORDERED) * evidence.temporaries(saving).low
            assert evidence.temporaries(candidate).low == pytest.approx(least)
        for parent in candidate.among(between.parents):
            assert evidence.seconds(candidate).likely >= evidence.seconds(parent).likely > 0


def test_seconds_follow_from_the_clock_where_plans_are_timed(evidence, desk):
    timed = replace(evidence, problem=replace(evidence.problem, measure=True))
    *_, large = timed.space[0].candidates
    other = timed.space[0].candidates[-2]
    tell(timed, desk, "trace", large)
    by_trace = timed.seconds_by_trace(large)
    assert timed.seconds(large) == Range(by_trace * UNTIMED.low, by_trace, by_trace * UNTIMED.high)
    tell(timed, desk, "compile", large)
    tell(timed, desk, "time", large)
    assert timed.seconds(large).likely == pytest.approx(timed.timed[large])
    ratio = timed.timed[large] / timed.seconds_by_trace(large)
    assert timed.seconds(other).likely == pytest.approx(ratio * timed.seconds_by_trace(other))


def test_what_a_cpu_cannot_time_counts_as_slow_and_what_a_card_cannot_run_has_failed(evidence, desk):
    inquiry = Inquiry("time", evidence.space[0].candidates[0])
    tell(evidence, desk, "trace", inquiry.candidate)
    evidence.fail(inquiry, "killed by signal 9")
    assert inquiry.candidate in evidence.candidates()
    slow = UNTIMED.high * evidence.seconds_by_trace(inquiry.candidate)
    assert evidence.seconds(inquiry.candidate) == around(slow)
    card = replace(evidence, problem=replace(evidence.problem, platform="cuda"), cache={})
    card.fail(inquiry, "killed by signal 9")
    assert inquiry.candidate not in card.candidates()
    assert card.failed[inquiry.candidate].why.startswith("cannot run: ")


@pytest.mark.parametrize(
    ("verb", "why", "failing"),
    [
        ("compile", "INTERNAL: no configuration", [4]),
        ("compile", "RESOURCE_EXHAUSTED: out of memory", [4, 8, 16]),
        ("trace", "the compile process was killed by signal 9", [1, 2, 4, 8, 16]),
    ],
)
def test_what_fails_with_a_candidate(evidence, verb, why, failing):
    """A step that lacks memory fails with every larger micro-batch; without a trace nothing is known of the levers."""
    (candidate,) = (each for each in evidence.space[0].candidates if each.micro == 4)
    evidence.fail(Inquiry(verb, candidate), why)
    assert sorted(each.micro for each in evidence.failed) == failing


def test_a_trace_is_that_of_all_levers_that_only_store_otherwise(desk):
    stored = ("remat", "optimizer_bits", "weight_bits")
    evidence = begin(problem(GIB, numerics="compressed", supported=stored), desk)
    first = evidence.space[0]
    tell(evidence, desk, "trace", first.candidates[0])
    alike = [each for each in evidence.space if evidence.is_traced(each.candidates[0])]
    assert len(alike) > 1
    assert {each.levers["remat"] for each in alike} == {first.levers["remat"]}
    assert {each.levers["weight_bits"] for each in alike} == {32, 24, 16}


def test_the_needed_budget_of_a_compiled_candidate_is_that_of_its_smallest_variant(evidence, desk):
    candidate = evidence.space[0].candidates[0]
    tell(evidence, desk, "trace", candidate)
    tell(evidence, desk, "compile", candidate)
    (needed,) = set(evidence.needed(candidate))
    roomy = evidence.book(candidate, candidate.plan, evidence.compiled[candidate]).needed_bytes
    assert needed <= roomy
    for budget, chance in ((needed, 1.0), (needed - 1, 0.0)):
        tight = replace(evidence, problem=replace(evidence.problem, budget_bytes=int(budget)), cache={})
        assert tight.chance(candidate) == chance
    assert needed > MIB
