"""What the search finds, held against a sweep of its whole space, and what holds of its questions.

The compiler is a fake whose bytes are known. What its traces say is off by a factor, any that was seen of real ones
(evidence.UNSEEN), which differs between levers as it does there (evidence.ALIKE).
"""

import ast
import contextlib
import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from planner_examples import ABLE, Card, FakeCompiler, off_by, problem, search, sweep
from plimsoll.errors import BudgetError
from plimsoll.levers.lever import CLASSES
from plimsoll.planner import bytes as plan_bytes
from plimsoll.planner import policy
from plimsoll.planner.bytes import Margin
from plimsoll.planner.evidence import ALIKE, UNSEEN, Evidence
from plimsoll.planner.objectives import NEAR, SMALL, SMALL_BYTES, Fastest, Smallest
from plimsoll.planner.policy import best, inquiries
from plimsoll.planner.search import Desk, begin, settle
from plimsoll.planner.space import combinations, same_step
from plimsoll.planner.types import DoesNotCompile, Problem
from plimsoll.units import MIB

FACTORS = 8


@pytest.fixture(autouse=True)
def _kept_free(monkeypatch):
    """Budgets of these tests are of fake processes, of which 16 MiB are kept free."""
    monkeypatch.setattr(plan_bytes, "PREDICTED", Margin(least_bytes=16 * MIB, largest_share=0.95))


@dataclass(frozen=True)
class Draw:
    """A problem, and a compiler to ask about it."""

    budget: int
    """In MiB."""
    traced: float
    apart: tuple[float, ...]
    loop: float
    numerics: str
    batch: int
    slower: tuple[float, ...] | None = None
    """By how much the clock differs from the rates; None where plans are not timed."""

    @property
    def problem(self) -> Problem:
        levers = {"supported": ABLE, "layerwise": 2, "numerics": self.numerics, "effective_batch": self.batch}
        return problem(self.budget * MIB, measure=self.slower is not None, **levers)

    def compiler(self) -> Card:
        return Card(loop_seconds=self.loop, traced=off_by(self.traced, self.apart), slower=self.slower or (1.0,))


DRAWS = st.builds(
    Draw,
    budget=st.integers(120, 700),
    traced=st.floats(1 / UNSEEN.high, 1 / UNSEEN.low / (1 + ALIKE)),
    apart=st.lists(st.floats(0, 1), min_size=1, max_size=FACTORS).map(tuple),
    loop=st.sampled_from([1e-9, 1e-3, 0.02, 0.05]),
    numerics=st.sampled_from(CLASSES),
    batch=st.sampled_from([4, 12, 16, 64]),
    slower=st.none() | st.lists(st.floats(0.9, 1.1), min_size=2, max_size=FACTORS).map(tuple),
)


def settled(draw: Draw, objective_of=Fastest, evidence: Evidence | None = None):
    """The evidence of a search for a draw, and what was chosen."""
    desk = Desk(draw.compiler())
    evidence = evidence or begin(draw.problem, desk)
    return evidence, settle(evidence, objective_of(evidence), desk)


def of_budget(evidence: Evidence, budget: int) -> Evidence:
    """The same answers, for another budget in MiB."""
    return replace(evidence, problem=replace(evidence.problem, budget_bytes=budget * MIB), cache={})


@settings(deadline=None, max_examples=examples(60, usual=8))
@given(DRAWS)
def test_what_is_returned_fits_and_what_is_refused_does_not(draw):
    """Whatever the traces say; and the floor of a refusal is that of the sweep, less what is not worth a question."""
    about, compiler = draw.problem, draw.compiler()
    needed = {row.step: row.needed_bytes for row in sweep(about, compiler)}
    if min(needed.values()) > about.budget_bytes:
        with pytest.raises(BudgetError) as refused:
            search(about, compiler)
        assert min(needed.values()) <= refused.value.floor_bytes <= min(needed.values()) * (1 + SMALL_BYTES)
        return
    planned = search(about, compiler)
    assert needed[same_step(planned.plan)] <= planned.ledger.needed_bytes <= about.budget_bytes
    verbs = {verb for verb, step in compiler.asked if same_step(step) == same_step(planned.plan)}
    assert verbs == {"analyse", "prepare"} | ({"measure"} if about.measure else set()), "it was compiled for itself"


@settings(deadline=None, max_examples=examples(60, usual=8))
@given(DRAWS)
def test_no_plan_is_found_only_where_no_candidate_has_a_chance(draw):
    evidence, chosen = settled(draw)
    if chosen is None:
        assert not any(evidence.chance(candidate) for candidate in evidence.candidates())
    else:
        assert evidence.chance(chosen) == 1
        assert chosen in evidence.compiled
        assert chosen in evidence.timed or draw.slower is None


@settings(deadline=None, max_examples=examples(60, usual=8))
@given(DRAWS, st.integers(1, 400))
def test_for_the_same_answers_a_larger_budget_gives_no_slower_plan(draw, more):
    evidence, _ = settled(draw)
    costs = []
    for budget in (draw.budget, draw.budget + more):
        seen = of_budget(evidence, budget)
        chosen = best(seen, Fastest(seen))
        weight = math.inf if chosen is None else NEAR ** CLASSES.index(chosen.plan.numerics)
        costs.append(math.inf if chosen is None else weight * seen.seconds(chosen).likely)
    assert costs[1] <= costs[0] * (1 + 1e-9)


@settings(deadline=None, max_examples=examples(60, usual=8))
@given(DRAWS, st.integers(1, 60))
def test_what_was_answered_for_a_smaller_budget_counts_for_a_larger_one(draw, more):
    evidence, small = settled(draw)
    compiled = {*evidence.compiled}
    evidence, large = settled(
        replace(draw, budget=draw.budget + more), evidence=of_budget(evidence, draw.budget + more)
    )
    assert compiled <= {*evidence.compiled}
    if small is not None:
        assert Fastest(evidence).likely_cost(large) <= Fastest(evidence).likely_cost(small)


@settings(deadline=None, max_examples=examples(60, usual=8))
@given(DRAWS, st.sampled_from([1, 2, 4]))
def test_no_question_is_asked_twice_and_what_is_timed_is_timed_alone(draw, workers):
    @dataclass
    class Watched(Card):
        at_work: list = field(default_factory=list)

        def _at(self, verb, answer):
            assert not (self.at_work and "measure" in (verb, *self.at_work))
            self.at_work.append(verb)
            try:
                return answer()
            finally:
                self.at_work.remove(verb)

        def analyse(self, plan):
            return self._at("analyse", lambda: super(Watched, self).analyse(plan))

        def measure(self, plans):
            return self._at("measure", lambda: super(Watched, self).measure(plans))

    compiler = Watched(traced=off_by(draw.traced, draw.apart), slower=draw.slower or (1.0,), workers=workers)
    try:
        search(draw.problem, compiler)
    except BudgetError:
        return
    times = Counter((verb, step) for verb, step in compiler.asked if verb in ("analyse", "prepare"))
    assert max(times.values()) == 1


@settings(deadline=None, max_examples=examples(40, usual=8))
@given(DRAWS)
def test_the_same_evidence_leads_to_the_same_questions(draw):
    evidence, _ = settled(draw, Smallest)
    for objective in (Fastest, Smallest):
        again = replace(evidence, cache={})
        assert inquiries(evidence, objective(evidence)) == inquiries(again, objective(again))


def test_the_policy_reads_no_clock():
    tree = ast.parse(Path(policy.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    assert not names & {"time", "monotonic", "datetime", "Deadline"}


def test_over_many_problems_plans_are_as_fast_as_any_that_fit_and_few_questions_are_asked():
    """Of 120 such draws plans were 0.5 % slower than the best in the mean, 13 % at worst, after 3.0 compiles."""
    dice = random.Random(5)
    slower, counts, draws = [], Counter(), examples(120, usual=24)
    for _ in range(draws):
        draw = Draw(
            budget=dice.choice([dice.randint(120, 700), dice.randint(120, 260)]),
            traced=dice.uniform(0.55, 1.1),
            apart=tuple(dice.random() for _ in range(dice.randint(1, FACTORS))),
            loop=dice.choice([1e-9, 1e-3, 0.02, 0.05]),
            numerics=dice.choice(CLASSES),
            batch=dice.choice([4, 12, 16, 64]),
            slower=tuple(dice.uniform(0.8, 1.25) for _ in range(6)) if dice.random() < 0.4 else None,
        )
        about, compiler = draw.problem, draw.compiler()
        fitting = {row.step: row.cost for row in sweep(about, compiler) if row.needed_bytes <= about.budget_bytes}
        try:
            planned = search(about, compiler)
            slower.append(fitting[same_step(planned.plan)] / min(fitting.values()) - 1)
        except BudgetError:
            assert not fitting, "refused though a plan fits"
        counts.update(verb for verb, _ in compiler.asked)
        counts["trace"] += compiler.traces
    assert mean(slower) <= 0.01
    assert max(slower) <= 0.15
    assert sum(each > (1 + SMALL) * NEAR - 1 for each in slower) <= len(slower) / 50
    assert counts["analyse"] <= 3.1 * draws + 10
    assert counts["prepare"] <= 1.1 * draws
    assert counts["trace"] <= 9 * draws + 10


@pytest.mark.parametrize("platform", ["cpu", "h100"])
def test_with_room_and_no_clock_one_step_is_traced_and_compiled(platform):
    """At its smallest and its largest micro-batch."""
    compiler = Card()
    chip = {"chip": platform, "platform": "cpu" if platform == "cpu" else "cuda"}
    planned = search(problem(4_000 * MIB, supported=ABLE, **chip), compiler)
    assert (compiler.traces, planned.compiles) == (2, 1)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize(("whole", "kept", "recomputed"), [(0.27, 1.47, 2.6), (1.0, 1.0, 2.2), (0.5, 1.3, 3.0)])
def test_however_far_traces_are_off_the_smallest_plan_is_found(platform, whole, kept, recomputed):
    """As those of a sharded state are: a quarter of what is compiled, or three times as much."""

    def off(plan):
        return whole if plan.micro_batch == 16 else kept if plan.lever("remat") == "none" else recomputed

    levers = {"numerics": "exact", "supported": ("remat", "loss_chunk"), "platform": platform}
    smallest = min(row.needed_bytes for row in sweep(problem(MIB, **levers), Card()))
    planned = search(problem(smallest + MIB, **levers), Card(traced=off))
    assert planned.ledger.needed_bytes == smallest


@settings(deadline=None, max_examples=examples(30, usual=8))
@given(DRAWS, st.integers(1, 400))
def test_a_smaller_budget_gives_no_faster_plan(draw, more):
    """By rates by 2 % at most. By the clock a question may not be worth asking: 1 of 132 neighbours were 5 % apart."""

    def planned(budget):
        try:
            return search(replace(draw, budget=budget).problem, draw.compiler())
        except BudgetError as refused:
            return refused

    small, large = planned(draw.budget), planned(draw.budget + more)
    if isinstance(large, BudgetError):
        assert isinstance(small, BudgetError), "what fits in less fits in more"
        assert large.floor_bytes > (draw.budget + more) * MIB
    elif not isinstance(small, BudgetError):
        apart = 1.02 if draw.slower is None else (1 + SMALL) * NEAR
        assert large.step_seconds <= small.step_seconds * apart


@pytest.mark.parametrize(
    ("supported", "each"), [(("remat", "loss_chunk"), 1), (ABLE, 2)], ids=["few levers", "all levers"]
)
def test_questions_grow_with_the_logarithm_of_the_space(supported, each):
    """On average over budgets, so many compiles for each doubling; micro-batches alone cost hardly any."""

    def compiles_of(batch):
        compiles, size = [], 0
        for budget in (150, 280, 800):
            levers = {"supported": supported, "layerwise": 2, "numerics": "compressed", "effective_batch": batch}
            about = problem(budget * MIB, **levers)
            apart = tuple((budget * at % 7) / 7 for at in range(FACTORS))
            compiler = Card(loop_seconds=0.02 if budget % 20 else 1e-3, traced=off_by(0.7 + budget % 3 / 5, apart))
            size = sum(len(one.plans) for one in combinations(about, compiler.rates(), compiler.static))
            with contextlib.suppress(BudgetError):
                search(about, compiler)
            compiles.append(sum(verb == "analyse" for verb, _ in compiler.asked))
        return size, mean(compiles)

    (small, of_small), (large, of_large) = compiles_of(16), compiles_of(1024)
    assert large > 1.8 * small
    assert of_small <= each * math.log2(small)
    assert of_large <= each * math.log2(large)
    assert of_large <= of_small + math.log2(large / small)


class Broken(FakeCompiler):
    """Which compiles nothing, for a reason that has to do with no plan."""

    def analyse(self, plan):
        self.compiles += 1
        raise DoesNotCompile("INTERNAL: no such instruction")


def test_after_twelve_that_do_not_compile_no_other_is_tried():
    compiler = Broken()
    with pytest.raises(BudgetError, match=r"runs on cpu: .*INTERNAL: no such instruction"):
        search(problem(4_000 * MIB), compiler)
    assert compiler.compiles == policy.GIVEN_UP
