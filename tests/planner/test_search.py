"""The fastest plan that fits, held against a brute-force look at every plan; and a refusal that helps."""

import itertools
import re
import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hypotheses import examples
from planner_examples import PROCESS, STATIC, FakeCompiler, activation_bytes, plan, problem, search
from plimsoll.errors import BudgetError, PlimsollError, RecipeError
from plimsoll.planned import Plan, Process
from plimsoll.planner import bytes as plan_bytes
from plimsoll.planner.bytes import LOADED, RUNNING_BYTES, SAVING_BYTES, Margin, PlanBytes
from plimsoll.planner.objectives import NEAR, SMALL
from plimsoll.planner.policy import GIVEN_UP
from plimsoll.planner.search import Desk, find_smallest
from plimsoll.planner.speed import range_of
from plimsoll.planner.types import Analysis, Depth, DoesNotCompile, Preparation
from plimsoll.types import Storage
from plimsoll.units import GIB, MIB, parse_bytes

COMPRESSIBLE = ("precision", "remat", "loss_chunk", "optimizer_bits", "weight_bits", "layerwise")


@pytest.fixture(autouse=True)
def _kept_free(monkeypatch):
    """Budgets of these tests are of fake processes, of which 16 MiB are kept free."""
    monkeypatch.setattr(plan_bytes, "PREDICTED", Margin(least_bytes=16 * MIB, largest_share=0.95))


def found(budget, compiler=None, **changes):
    return search(problem(budget, **changes), compiler or FakeCompiler())


def need_of(one: Plan, budget: int, compiler: FakeCompiler) -> int:
    one_bytes = PlanBytes(
        plan=one,
        problem=problem(budget),
        static=compiler.static(),
        analysis=compiler.analyse(one),
        imported_bytes=compiler.imported_bytes(),
        preparation=compiler.prepare(one, "trace"),
    )
    return one_bytes.ledger().needed_bytes


def every_plan(precision):
    for micro, remat, chunk in itertools.product((1, 2, 4, 8, 16), ("none", "dots", "block"), (0, 256)):
        if remat == "none" or chunk:  # to recompute blocks and keep all logits is not tried (levers/records/blocks.py)
            yield plan(micro_batch=micro, accumulation=16 // micro, remat=remat, loss_chunk=chunk, precision=precision)


def smallest_need(precision="bfloat16"):
    return min(need_of(one, GIB, FakeCompiler()) for one in every_plan(precision))


def test_with_room_enough_nothing_is_recomputed_and_saving_goes_on_beside_training():
    planned = found(GIB)
    assert (planned.plan.lever("remat"), planned.plan.lever("loss_chunk"), planned.plan.lever("async_save")) == (
        "none",
        0,
        True,
    )
    assert planned.plan.effective_batch == 16
    is_fastest = all(other.step_seconds >= planned.step_seconds for other in planned.alternatives)
    assert planned.reason.startswith("the fastest of") == is_fastest, "a twentieth slower is not called so"


@pytest.fixture
def for_two():
    """A budget for two examples at once."""
    return need_of(plan(micro_batch=2, accumulation=8, precision="bfloat16"), GIB, FakeCompiler()) + MIB


def test_where_plans_are_timed_a_loss_in_chunks_has_its_chance():
    """By the rates it is never faster; on a CPU, whose cache holds a chunk, it may be."""
    chunks = {(micro, "none", 256): 0.5 for micro in (1, 2, 4, 8, 16)}
    whole = {(micro, "none", 0): 0.6 for micro in (1, 2, 4, 8, 16)}
    planned = found(GIB, FakeCompiler(seconds=chunks | whole), measure=True)
    assert (planned.plan.lever("loss_chunk"), planned.step_seconds) == (256, 0.5)
    assert found(GIB, FakeCompiler(seconds=chunks | whole)).plan.lever("loss_chunk") == 0  # by the rates alone


def test_nothing_is_timed_that_this_machine_cannot_hold(for_two):
    compiler = FakeCompiler()
    found(for_two, compiler, measure=True)
    timed = [one for verb, one in compiler.asked if verb == "measure"]
    assert timed
    most = for_two + SAVING_BYTES + STATIC.state_bytes  # what is compiled saves beside training
    assert all(need_of(one, GIB, FakeCompiler()) <= most for one in timed)


@pytest.mark.parametrize(
    "pins",
    [
        {"async_save": False},
        {"micro_batch": 1, "remat": "dots", "loss_chunk": 0, "precision": "bfloat16", "async_save": True},
    ],
)
def test_pins_are_kept_and_named(pins):
    planned = found(GIB, pins=pins)
    assert {name: planned.plan.lever(name) for name in pins} == pins
    assert planned.plan.pinned == tuple(sorted(pins))


@pytest.mark.parametrize(("speed", "precision"), [(1.03, "float32"), (0.4, "float32"), (2.0, "bfloat16")])
def test_exact_arithmetic_is_preferred_where_rounding_gains_less_than_five_per_cent(speed, precision):
    assert found(GIB, FakeCompiler(bf16_speed=speed)).plan.precision == precision


def test_rounding_that_gains_no_time_is_used_where_only_its_bytes_fit():
    slow = FakeCompiler(bf16_speed=0.4)
    with pytest.raises(BudgetError):
        found(smallest_need("float32") - 1, slow, numerics="exact")
    assert found(smallest_need("float32") - 1, slow).plan.precision == "bfloat16"
    assert found(smallest_need("float32"), slow).plan.precision == "float32"


def test_a_plan_too_large_to_be_timed_costs_only_itself():
    compiler = FakeCompiler(cannot_run=lambda plan: plan.micro_batch == 16, loop_seconds=0.05)
    planned = found(GIB, compiler, measure=True)
    assert planned.plan.micro_batch < 16
    assert planned.step_seconds_source == "measured"


def test_attention_that_holds_its_scores_is_found_where_only_recomputing_makes_room_for_it():
    """A card without an attention kernel of its own: with nothing recomputed its scores are far beyond the budget."""
    kept = {"none": 20_000, "dots": 4_000, "block": 300}
    scores = {"none": 50_000, "dots": 10_000, "block": 20}

    class Attends(FakeCompiler):
        def analyse(self, plan: Plan):
            analysis = super().analyse(plan)
            slower = 2.5 if plan.lever("attention_chunk") else 1.0
            return replace(analysis, flops=slower * analysis.flops)

    def temporaries(plan: Plan) -> int:
        whole = 0 if plan.lever("attention_chunk") else scores[plan.lever("remat")]
        return (kept[plan.lever("remat")] + whole) * plan.micro_batch * MIB

    planned = found(
        GIB,
        Attends(temporaries=temporaries),
        platform="cuda",
        chip="t4",
        supported=("remat", "attention_chunk"),
        loss_chunks=(),
        attention_chunks=(1_024, 256),
    )
    assert (planned.plan.lever("remat"), planned.plan.lever("attention_chunk")) == ("block", 0)


def test_what_cannot_fit_is_traced_for_its_smallest_micro_batch_alone():
    traced = {"none": set(), "dots": set(), "block": set()}

    class Counts(FakeCompiler):
        def trace(self, plan: Plan):
            traced[plan.lever("remat")].add(plan.micro_batch)
            return super().trace(plan)

    kept = {"none": 2_000, "dots": 1_500, "block": 10}
    compiler = Counts(temporaries=lambda plan: kept[plan.lever("remat")] * plan.micro_batch * MIB)
    planned = found(GIB, compiler, supported=("remat",), loss_chunks=(), pins={"precision": "float32"})
    assert planned.plan.lever("remat") == "block"
    assert traced["none"] == {1}
    assert traced["block"] == {1, 16}


def test_a_time_says_whether_it_is_of_kernels_or_of_rates_and_has_the_range_of_that():
    class WithKernels(FakeCompiler):
        def analyse(self, plan: Plan):
            return replace(super().analyse(plan), kernels=10 * plan.accumulation, kernel_seconds=1.0)

    card = {"platform": "cuda", "chip": "h100"}
    planned = found(GIB, WithKernels(), **card)
    assert planned.step_seconds_source == "kernels"
    assert planned.step_seconds_range == range_of(
        planned.step_seconds, "kernels", platform="cuda", loss_chunk=planned.plan.lever("loss_chunk")
    )
    unseen = FakeCompiler()
    rated = found(GIB, unseen, **card)
    assert rated.step_seconds_source == "roofline"
    assert rated.step_seconds_range == range_of(
        rated.step_seconds, "roofline", platform="cuda", loss_chunk=rated.plan.lever("loss_chunk")
    )
    assert "measure" not in {verb for verb, _ in unseen.asked}
    timed = found(GIB, WithKernels(), measure=True, **card)
    assert (timed.step_seconds_source, timed.step_seconds_range) == ("measured", None)


def refusal(budget, compiler=None, **changes):
    with pytest.raises(BudgetError) as refused:
        found(budget, compiler, **changes)
    return refused.value


@dataclass
class Bumpy(FakeCompiler):
    """Temporaries that are no line, and code that differs with the levers."""

    bumps: tuple[int, ...] = (0,)
    heavier: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        self.temporaries = lambda plan: 20 * MIB + activation_bytes(plan) + _one_of(self.bumps, plan.micro_batch)

    def analyse(self, plan: Plan) -> Analysis:
        more = _one_of(
            self.heavier,
            len(plan.lever("remat")),
            plan.lever("optimizer_bits"),
            plan.lever("weight_bits"),
            plan.lever("layerwise"),
        )
        return replace(super().analyse(plan), instructions=round(more / LOADED.instruction_bytes))


def _one_of(choices: tuple[int, ...], *of: int) -> int:
    return choices[hash(of) % len(choices)] * MIB


def some(most: int):
    return st.lists(st.integers(0, most), min_size=1, max_size=7).map(tuple)


@settings(max_examples=examples(60), deadline=None)
@given(
    some(6),
    some(8),  # percent: KINDS_DIFFER
    st.sampled_from(["mixed", "compressed"]),
    st.sampled_from([None, 2]),
    st.integers(60, 240),
)
@example((0,), (2, 0, 8), "compressed", None, 159)  # the smallest was of a kind whose process had not been weighed
def test_what_a_refusal_asks_for_is_enough_whatever_the_compiler_says(bumps, heavier, numerics, layerwise, budget):
    compiler = Bumpy(bumps=bumps, heavier=heavier)
    how = {"numerics": numerics, "supported": COMPRESSIBLE, "layerwise": layerwise}
    try:
        assert found(budget * MIB, compiler, **how).ledger.fits
    except BudgetError as refused:
        enough = parse_bytes(re.search(r"--memory (\w+)", str(refused))[1])
        assert found(enough, compiler, **how).ledger.fits


def test_larger_micro_batches_are_not_compiled_where_a_small_one_is_too_large():
    compiler = FakeCompiler()
    refusal(smallest_need() - 8 * MIB, compiler)
    assert max(plan.micro_batch for verb, plan in compiler.asked if verb == "analyse") <= 2


def test_advice_fits_the_case():
    pins = {"micro_batch": 16, "remat": "none"}
    assert "leave out --micro-batch, --remat" in str(refusal(smallest_need() + MIB, pins=pins))
    assert "leave out" not in str(refusal(PROCESS, pins=pins))  # would be refused again
    between = (smallest_need() + smallest_need("float32")) // 2
    assert "--numerics mixed" in str(refusal(between, numerics="exact"))
    assert "--numerics mixed" not in str(refusal(PROCESS, numerics="exact"))  # would be refused again
    assert "--numerics mixed" not in str(refusal(PROCESS))
    large_data = {2: {"data": 300 * MIB}}
    advice = "a smaller --mix-chunks"
    assert advice in str(refusal(260 * MIB, host_bytes=large_data, data_advice=advice))
    assert advice not in str(refusal(PROCESS, data_advice=advice))


@pytest.mark.parametrize("largest", [1, 4])
def test_plans_that_do_not_compile_are_passed_over(largest):
    """Where the first two do not compile, the smallest is tried."""
    planned = found(GIB, FakeCompiler(fails=lambda one: one.micro_batch > largest))
    assert planned.plan.micro_batch <= largest


def test_where_nothing_compiles_the_refusal_says_why():
    problem = refusal(GIB, FakeCompiler(fails=lambda one: True))
    assert problem.floor_bytes is None
    assert "compiles and runs on cpu" in str(problem)
    assert "RESOURCE_EXHAUSTED" in str(problem)


class Dies(FakeCompiler):
    """Its child is killed at one verb."""

    def __init__(self, verb):
        super().__init__()
        self.verb = verb
        setattr(self, verb, self._die)

    def _die(self, *_plan):
        raise DoesNotCompile("the compile process was killed by signal 9")


@pytest.mark.parametrize("verb", ["static", "rates", "imported_bytes", "prepare", "analyse"])
def test_a_child_that_dies_ends_in_a_refusal_with_its_last_words(verb):
    with pytest.raises(PlimsollError, match="killed by signal 9"):
        found(GIB, Dies(verb))


POD = {"chip": "tpu-v5e-8", "platform": "tpu", "devices": 8, "hosts": 1, "effective_batch": 64}


def test_every_device_gets_its_rows():
    planned = found(GIB, **POD)
    assert planned.plan.micro_batch % 8 == 0
    assert planned.devices == 8
    assert planned.plan.fsdp == 1  # the state fits on each


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_state_is_split_as_far_as_it_does_not_fit(parts):
    """Among more devices more is sent: no further than the budget asks for, but for what is not worth a question."""
    compiler = FakeCompiler(temporaries=lambda plan: MIB)
    split = found(GIB, compiler, pins={"fsdp": parts}, **POD)
    planned = found(split.ledger.predicted_peak_bytes + MIB, compiler, **POD)
    assert planned.plan.fsdp >= parts
    assert planned.step_seconds <= split.step_seconds * (1 + SMALL)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"effective_batch": 12}, r"12 examples .* a multiple of 8: 8 devices of tpu-v5e-8"),
        ({"pins": {"fsdp": 3}}, r"--fsdp 3 does not divide the 8 devices"),
    ],
)
def test_shards_that_do_not_divide_are_refused(changes, words):
    with pytest.raises(RecipeError, match=words):
        found(GIB, **POD | changes)


def test_compressed_state_is_chosen_only_where_it_is_allowed_and_what_is_exact_does_not_fit():
    compiler = FakeCompiler()
    roomy = found(GIB, compiler, numerics="compressed", supported=COMPRESSIBLE).plan
    assert (roomy.storage, roomy.numerics) == (Storage(), "mixed")
    floor = smallest_need()
    with pytest.raises(BudgetError, match="--numerics compressed"):
        found(floor - 2 * MIB, supported=COMPRESSIBLE)
    tight = found(floor - 2 * MIB, numerics="compressed", supported=COMPRESSIBLE)
    assert tight.plan.lever("optimizer_bits") == 8
    assert tight.plan.numerics == "compressed"
    assert tight.ledger.predicted_peak_bytes <= floor - 2 * MIB


def test_weights_give_way_only_after_the_state_does():
    floor = smallest_need()
    forms = {
        found(budget, numerics="compressed", supported=COMPRESSIBLE).plan.storage
        for budget in range(floor - 20 * MIB, floor, 2 * MIB)
    }
    assert all(form.optimizer_bits == 8 for form in forms if form.weight_bits < 32)
    assert any(form.weight_bits < 32 for form in forms)


def test_a_host_that_is_too_small_is_refused_as_a_host():
    """However it is written, a save needs a copy of the state there."""
    peak = PROCESS + RUNNING_BYTES + SAVING_BYTES + 3 * MIB + STATIC.state_bytes
    needed = plan_bytes.PREDICTED.needed_bytes(peak)
    assert found(GIB, host_budget_bytes=needed, **POD).ledger.fits
    for pins in ({}, {"async_save": False}):
        refused = refusal(GIB, host_budget_bytes=needed - 1, pins=pins, **POD)
        assert (refused.budget_bytes, refused.floor_bytes) == (needed - 1, needed)


def test_fewer_batches_are_made_ready_where_nothing_else_fits():
    depths = {depth: {"data": 3 * MIB + depth * 20 * MIB} for depth in (2, 1, 0)}
    assert found(GIB, host_bytes=depths).plan.lever("prefetch") == 2
    tight = smallest_need() + 5 * MIB
    with pytest.raises(BudgetError):
        found(tight, host_bytes={2: depths[2]})
    chosen = found(tight, host_bytes=depths)
    assert (chosen.plan.lever("prefetch"), chosen.plan.lever("async_save")) == (0, False)
    assert chosen.ledger.predicted_peak_bytes <= tight


NO_CONFIGURATION = "INTERNAL: No supported config found for HLO: %gemm_fusion_dot.12 (kind __triton_gemm)"


class Triton(FakeCompiler):
    """Fails for the micro-batches that failed on an H100, and not for lack of memory (notes, "On a card")."""

    def analyse(self, plan: Plan):
        if plan.micro_batch == 24:
            self.compiles += 1
            raise DoesNotCompile(NO_CONFIGURATION)
        return super().analyse(plan)


def test_where_a_micro_batch_does_not_compile_those_beside_it_are_tried():
    """The largest that fits and compiles is as good as ever, and what was left out stands in one sentence."""
    pins = {"remat": "none"}
    every = found(GIB, FakeCompiler(loop_seconds=0.1), effective_batch=768, pins=pins)
    planned = found(GIB, Triton(loop_seconds=0.1), effective_batch=768, pins=pins)
    assert every.plan.micro_batch == 24
    assert planned.plan.micro_batch in (16, 32)
    assert planned.left_out[0].startswith("micro-batch 24")
    assert every.left_out == ()


def test_on_a_card_a_plan_that_cannot_run_is_not_chosen_and_the_next_best_is():
    seconds = {(16, "none"): 1e-4, (8, "none"): 2e-4, (4, "none"): 1e-3}
    compiler = FakeCompiler(cannot_run=lambda plan: plan.micro_batch in (16, 8), seconds=seconds, loop_seconds=0.05)
    planned = found(GIB, compiler, measure=True, platform="cuda", chip="h100")
    assert planned.plan.micro_batch == 4
    assert planned.step_seconds_source == "measured"
    assert sum(text.startswith("cannot run: micro-batch") for text in planned.left_out) >= 2


def test_on_a_card_where_no_plan_runs_the_search_is_refused():
    """After a few that end alike, not after all: each was compiled before."""
    compiler = FakeCompiler(cannot_run=lambda plan: True)
    with pytest.raises(BudgetError) as refused:
        found(GIB, compiler, measure=True, platform="cuda", chip="h100")
    assert f"runs on h100: {GIVEN_UP} failed" in str(refused.value)
    assert str(refused.value).count("cannot run: micro-batch") == 1
    assert "`plimsoll doctor`" in str(refused.value)
    assert compiler.compiles <= GIVEN_UP + 2


class ScannedCannotBePrepared(FakeCompiler):
    """Without rematerialisation layers are unrolled, and to load those takes 160 MiB more."""

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        if plan.lever("remat") == "dots":
            raise DoesNotCompile("the compile process was killed by signal 9")
        return heavier(super().prepare(plan, depth), loading=160 * MIB if plan.lever("remat") == "none" else 0)


def heavier(preparation: Preparation, *, resident: int = 0, loading: int = 0) -> Preparation:
    """A trial process that weighs more."""
    if preparation.process is None:
        return preparation
    process = Process(resident_bytes=PROCESS + resident, loading_bytes=PROCESS + resident + loading)
    return replace(preparation, process=process)


def test_a_kind_of_plan_that_cannot_be_prepared_costs_that_kind():
    compiler = ScannedCannotBePrepared(temporaries=lambda plan: plan.micro_batch * MIB)
    assert found(PROCESS + 150 * MIB, compiler, prepares="try").plan.lever("remat") == "block"


class HeavierWhenTried(FakeCompiler):
    """The process of the first plan that is tried weighs 150 MiB more than its code says."""

    def prepare(self, plan: Plan, depth: Depth) -> Preparation:
        return heavier(super().prepare(plan, depth), resident=150 * MIB if plan.lever("remat") == "none" else 0)


def test_where_what_was_best_does_not_fit_after_all_the_search_goes_on():
    budget = need_of(plan(micro_batch=8, accumulation=2, precision="bfloat16"), GIB, FakeCompiler()) + 10 * MIB
    assert found(budget, FakeCompiler(loop_seconds=0.01), prepares="try").plan.lever("remat") == "none"
    planned = found(budget, HeavierWhenTried(loop_seconds=0.01), prepares="try")
    assert planned.plan.lever("remat") != "none"
    assert planned.ledger.needed_bytes <= budget
    assert planned.trial is not None


def test_a_short_run_is_tried_only_where_it_fits_in_no_other_way():
    compiler = FakeCompiler(loop_seconds=0.01)
    few, many = ({"steps": steps, "measure": True, "prepares": "try"} for steps in (10, 10**6))
    assert [found(GIB, compiler, **how).trial is not None for how in (few, many)] == [False, True]
    pins = {"micro_batch": 1, "async_save": False}
    floor = found(GIB, FakeCompiler(), pins=pins).ledger.predicted_peak_bytes
    tight = found(floor + 25 * MIB, FakeCompiler(), pins=pins, **few)
    assert tight.trial is not None
    assert tight.ledger.fits


def test_of_plans_as_fast_as_one_another_the_exact_one_is_taken_though_another_needs_fewer_bytes():
    """The largest micro-batch that fits is slow here, so that the search goes on to an 8-bit state."""
    compiler = FakeCompiler(loop_seconds=0.1)
    budget = need_of(plan(micro_batch=8, accumulation=2), GIB, compiler) + MIB
    pins = {"remat": "none", "loss_chunk": 0, "precision": "float32", "async_save": False}
    planned = found(budget, compiler, numerics="compressed", supported=COMPRESSIBLE, pins=pins)
    rival = found(budget, compiler, numerics="compressed", supported=COMPRESSIBLE, pins=pins | {"optimizer_bits": 8})
    assert rival.step_seconds <= NEAR * planned.step_seconds
    assert rival.ledger.needed_bytes < planned.ledger.needed_bytes
    assert planned.plan.numerics == "exact"


def test_a_short_run_is_asked_fewer_questions_about():
    """What a compile and its timing take must be saved in it."""
    seconds = {(micro, remat): 0.5 - 0.02 * micro for micro in (1, 2, 4, 8, 16) for remat in ("none", "dots", "block")}
    asked = {}
    for steps in (10, 1_000_000, None):
        compiler = FakeCompiler(seconds=seconds, loop_seconds=0.05)
        assert found(GIB, compiler, measure=True, steps=steps).ledger.fits
        asked[steps] = len(compiler.asked)
    assert asked[10] < asked[None] <= asked[1_000_000]


class Slow(FakeCompiler):
    def analyse(self, plan):
        time.sleep(0.05)
        return super().analyse(plan)


def test_an_answer_is_waited_for_once_the_time_is_over_and_no_core_is_kept_busy():
    looks = itertools.count()
    assert search(problem(GIB), Slow(), seconds=1, clock=lambda: 0.0 * next(looks)).fits
    assert next(looks) < 100


def test_the_smallest_plan_says_whether_it_fits():
    for budget, fits in ((MIB, False), (GIB, True)):
        facts = find_smallest(problem(budget), Desk(FakeCompiler())).to_dict()
        assert (facts["fits"], facts["verdict"]) == (fits, "fits" if fits else "does not fit")


def test_the_smallest_plan_needs_no_more_where_there_is_room():
    short, roomy = (find_smallest(problem(budget), Desk(FakeCompiler())) for budget in (MIB, GIB))
    assert roomy.ledger.needed_bytes == short.ledger.needed_bytes
    assert not roomy.plan.lever("async_save")
    assert roomy.alternatives
    assert not any(other.plan.lever("async_save") for other in roomy.alternatives)
