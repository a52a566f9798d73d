"""Which plans are timed, and in which order they are ranked afterwards: the times are known here."""

import pytest

from planner_examples import plan
from plimsoll.planned import Ledger
from plimsoll.planner.candidates import Candidate
from plimsoll.planner.clock import Clock
from plimsoll.planner.types import DoesNotCompile
from plimsoll.units import GIB


class Timed:
    """A compiler that only times, by micro-batch and remat; what it cannot run stops all of a call."""

    def __init__(self, seconds, *, cannot_run=()):
        self.seconds, self.cannot_run, self.asked = seconds, cannot_run, []

    def measure(self, plans):
        assert all(each.async_save for each in plans)
        self.asked.append([(each.micro_batch, each.remat) for each in plans])
        for each in plans:
            if each.micro_batch in self.cannot_run:
                raise DoesNotCompile(f"no room for {each.micro_batch}")
        return [self.seconds[each.micro_batch, each.remat] for each in plans]


def candidate(micro, remat="none", *, seconds=None, peak=None):
    book = Ledger(budget_bytes=GIB, predicted={"state": micro if peak is None else peak}, phase="train")
    return Candidate(plan(micro_batch=micro, remat=remat), book, 1 / micro if seconds is None else seconds)


def ranked(fitting, compiler):
    failures, said = [], []
    found = Clock(compiler, said.append, failures).ranked(fitting)
    known = [(one.plan.micro_batch, one.plan.remat, one.seconds) for one in found if one.measured]
    return known, failures, said


def test_of_one_combination_the_first_three_are_timed_and_the_neighbours_of_the_fastest():
    """By the rates the largest is fastest, by the clock 4 is: 2 is tried for that, and is slower."""
    compiler = Timed({(32, "none"): 9.0, (16, "none"): 7.0, (8, "none"): 5.0, (4, "none"): 3.0, (2, "none"): 4.0})
    known, failures, said = ranked([candidate(micro) for micro in (32, 16, 8, 4, 2, 1)], compiler)
    assert compiler.asked == [
        [(32, "none"), (16, "none"), (8, "none")], [(8, "none"), (4, "none")], [(4, "none"), (2, "none")]
    ]  # fmt: skip
    assert known == [(32, "none", 9.0), (16, "none", 7.0), (8, "none", 5.0), (4, "none", 3.0), (2, "none", 4.0)]
    assert failures == []
    assert said == ["timing 3 plans in turn", "timing 2 plans in turn", "timing 2 plans in turn"]


def test_a_larger_neighbour_is_timed_too():
    """Three that the rates put first, and 64 beside the fastest of them; below 4 there is nothing."""
    fitting = [candidate(micro, seconds=seconds) for micro, seconds in [(16, 1.0), (8, 2.0), (4, 3.0), (64, 4.0)]]
    compiler = Timed({(16, "none"): 1.0, (8, "none"): 2.0, (4, "none"): 3.0, (64, "none"): 0.5})
    known, _, _ = ranked(fitting, compiler)
    assert compiler.asked[1:] == [[(16, "none"), (64, "none")]]
    assert sorted(known) == [(4, "none", 3.0), (8, "none", 2.0), (16, "none", 1.0), (64, "none", 0.5)]
    fitting = [candidate(micro, seconds=micro) for micro in (2, 4, 8, 16)]
    compiler = Timed({(micro, "none"): float(micro) for micro in (2, 4, 8, 16)})
    ranked(fitting, compiler)
    assert compiler.asked == [[(2, "none"), (4, "none"), (8, "none")]]


def test_of_two_combinations_three_of_each_are_timed():
    both = [candidate(micro, remat) for micro in (16, 8, 4, 2) for remat in ("none", "block")]
    compiler = Timed({(each.plan.micro_batch, each.plan.remat): 1.0 / each.plan.micro_batch for each in both})
    ranked(both, compiler)
    assert compiler.asked == [[(micro, remat) for micro in (16, 8, 4) for remat in ("none", "block")]]


def test_of_more_combinations_the_fastest_and_the_largest_of_each_are_timed():
    three = [
        candidate(micro, remat, seconds=seconds)
        for micro, seconds in [(8, 1.0), (4, 2.0), (16, 3.0)] for remat in ("none", "dots", "block")
    ]  # fmt: skip
    compiler = Timed({(each.plan.micro_batch, each.plan.remat): each.plan.micro_batch + 0.0 for each in three})
    ranked(three, compiler)
    remats = ("none", "dots", "block")
    assert compiler.asked[0] == [(micro, remat) for micro in (8, 16) for remat in remats]


def test_where_the_machine_is_smaller_than_the_budget_the_largest_is_left_out_and_the_rest_timed():
    compiler = Timed({(8, "none"): 1.0, (4, "none"): 2.0}, cannot_run={16})
    fitting = [candidate(16, peak=300), candidate(8, peak=200), candidate(4, peak=100)]
    known, failures, _ = ranked(fitting, compiler)
    assert compiler.asked[:2] == [[(16, "none"), (8, "none"), (4, "none")], [(8, "none"), (4, "none")]]
    assert sorted(known) == [(4, "none", 2.0), (8, "none", 1.0)]
    assert set(failures) == {"no room for 16"}


def test_what_cannot_be_timed_at_all_keeps_its_order():
    compiler = Timed({}, cannot_run={4, 2})
    fitting = [candidate(4), candidate(2)]
    failures = []
    assert Clock(compiler, lambda text: None, failures).ranked(fitting) == fitting
    assert [len(plans) for plans in compiler.asked] == [2, 1]
    assert failures == ["no room for 4", "no room for 2"]


@pytest.mark.parametrize("count", [1, 2])
def test_timed_plans_are_as_they_were_but_for_their_seconds(count):
    compiler = Timed({(4, "none"): 7.0, (2, "none"): 8.0})
    fitting = [candidate(4), candidate(2)][:count]
    found = Clock(compiler, lambda text: None, []).timed(fitting)
    assert [one.seconds for one in found] == [7.0, 8.0][:count]
    assert [(one.plan, one.ledger) for one in found] == [(one.plan, one.ledger) for one in fitting]


def on_card(fitting, compiler):
    failures, said = [], []
    clock = Clock(compiler, said.append, failures, must_run=True)
    found = clock.ranked(fitting)
    return [(one.plan.micro_batch, one.seconds) for one in found if one.measured], found, failures, said


def test_on_a_card_the_plan_that_cannot_run_is_found_and_the_others_are_timed():
    """Not the largest, as on a machine that is too small: 8 fails for a reason of its own."""
    compiler = Timed({(16, "none"): 1.0, (4, "none"): 2.0, (2, "none"): 3.0}, cannot_run={8})
    known, _, failures, said = on_card([candidate(micro) for micro in (16, 8, 4, 2)], compiler)
    assert known == [(16, 1.0), (4, 2.0)]
    assert failures == ["cannot run: micro-batch 8, remat none, loss whole, float32: no room for 8"]
    assert failures[0] in said


def test_on_a_card_what_cannot_run_is_not_chosen_and_the_next_are_tried():
    compiler = Timed({(2, "none"): 3.0, (1, "none"): 4.0}, cannot_run={32, 16, 8, 4})
    known, found, failures, _ = on_card([candidate(micro) for micro in (32, 16, 8, 4, 2, 1)], compiler)
    assert known == [(2, 3.0), (1, 4.0)]
    assert len(failures) == 4
    assert [one.plan.micro_batch for one in found] == [2, 1]
    _, found, failures, _ = on_card([candidate(micro) for micro in (4, 2)], Timed({}, cannot_run={4, 2}))
    assert found == []
    assert len(failures) == 2


def test_on_a_card_a_neighbour_that_cannot_run_leaves_the_fastest_as_it_is():
    compiler = Timed({(16, "none"): 3.0, (8, "none"): 2.0, (4, "none"): 1.0}, cannot_run={2})
    known, _, failures, _ = on_card([candidate(micro) for micro in (16, 8, 4, 2)], compiler)
    assert sorted(known) == [(4, 1.0), (8, 2.0), (16, 3.0)]
    assert len(failures) == 1
