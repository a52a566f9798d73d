"""What a refusal says, word by word, of plans whose bytes are known."""

from dataclasses import replace

import pytest

from planner_examples import STATIC, analysis, plan, problem
from plimsoll.planned import HostLedger, Ledger
from plimsoll.planner.candidates import Candidate
from plimsoll.planner.refusal import refusal
from plimsoll.units import MIB


def smallest(*, spare=0, host=None, **parts):
    """A plan whose parts are so many MiB."""
    predicted = {name.replace("_", " "): round(size * MIB) for name, size in parts.items()}
    book = Ledger(
        budget_bytes=100 * MIB, predicted=predicted, phase="train", host=host, spare_bytes=spare * MIB
    )  # fmt: skip
    return Candidate(plan(), book, 1.0, analysis(0))


def never(**_changes):
    """Nothing else would fit either."""


def refused(least, would_fit=never, **changes):
    """Its lines; nothing besides what is asked for would help, whose state is small and whose rate is of examples."""
    static = replace(STATIC, parameter_bytes=1, optimizer_bytes=0)
    about = {"rate_unit": "examples", "numerics": "compressed"} | changes
    return refusal(problem(100 * MIB, **about), static, least, [], would_fit)


def test_the_smallest_plan_its_parts_and_what_would_be_enough():
    """Parts of less than a MiB are not named; the largest comes first."""
    found = refused(smallest(process=70, data=2.5, parameters=50, carry=0.875, ema=1))
    assert (found.budget_bytes, found.floor_bytes) == (100 * MIB, 124 * MIB + 3 * MIB // 8)
    first, second, third, fourth = str(found).splitlines()
    assert first == "no plan for toy fits in 100.0 MiB on cpu"
    assert second == (
        "  smallest found: 124.4 MiB = process 70 + parameters 50 + data 2 + ema 1 (MiB), in the phase 'train'"
    )
    assert third.startswith("  settings of that plan: micro-batch 4, ")
    assert fourth == "  you could: --memory 125MiB"


def test_what_is_spared_is_part_of_what_is_needed():
    found = refused(smallest(process=120, spare=4))
    assert found.floor_bytes == 124 * MIB
    assert "in the phase 'train' and 4.0 MiB kept free\n" in str(found)
    assert str(found).endswith("you could: --memory 124MiB")
    assert "kept free" not in str(refused(smallest(process=120)))


@pytest.mark.parametrize(
    ("mib", "words"), [(64 * 1024 - 1, "65535MiB"), (64 * 1024, "64GiB"), (64 * 1024 + 1, "65GiB")]
)
def test_from_64_gib_on_whole_ones_are_asked_for(mib, words):
    assert str(refused(smallest(process=mib))).endswith(f"you could: --memory {words}")


def test_where_nothing_compiles_the_reasons_are_all_there_is():
    found = refusal(problem(100 * MIB), STATIC, None, ["one", "two"], never)
    assert str(found) == "toy does not compile for cpu: one; two"
    assert (found.budget_bytes, found.floor_bytes) == (100 * MIB, None)
    assert str(refusal(problem(1), STATIC, None, [], never)) == "toy does not compile for cpu: no plan to try"


def beside(budget, needed):
    return HostLedger(budget_bytes=budget * MIB, predicted={"process": needed * MIB}, phase="save")


def test_a_host_that_is_too_small_is_told_where_the_device_is_not():
    found = refused(smallest(parameters=100, host=beside(40, 50)), chip="h200")
    assert str(found).splitlines() == [
        "no plan for toy fits in 40.0 MiB of a host's memory beside h200 (--host-memory)",
        "  smallest found: 50.0 MiB = process 50 (MiB), in the phase 'save'",
        "  you could: --host-memory 50MiB",
    ]
    assert (found.budget_bytes, found.floor_bytes) == (40 * MIB, 50 * MIB)
    for least in (smallest(parameters=101, host=beside(40, 50)), smallest(parameters=101, host=beside(50, 50))):
        assert refused(least).floor_bytes == 101 * MIB


def advice(least, *, state=0, would_fit=never, **changes):
    static = replace(STATIC, parameters=1_000, parameter_bytes=state * MIB, optimizer_bytes=0)
    about = {"rate_unit": "examples", "numerics": "compressed", "supported": ()} | changes
    lines = str(refusal(problem(100 * MIB, **about), static, least, [], would_fit)).splitlines()
    (could,) = (line for line in lines if line.startswith("  you could: "))
    _, *hints = could.split(", or ")
    return hints


OVER = smallest(process=70, step_temporaries=50)


def freed(pins):
    """Nothing fits but with these pins alone."""
    return lambda **changes: OVER if changes == {"pins": pins} else None


def test_pins_are_to_be_left_out_by_their_flags_or_with_the_plan_that_they_came_from():
    pins = {"remat": "none", "loss_chunk": 0}
    assert advice(OVER, pins=pins) == [], "it would be refused again"
    assert advice(OVER, pins=pins, would_fit=freed({})) == ["leave out --loss-chunk, --remat"]
    assert advice(OVER, pins=pins, pinned_by="--plan x.json") == [
        "leave out --plan x.json, and a plan that fits is searched for"
    ]
    assert advice(OVER) == []


@pytest.mark.parametrize(
    ("numerics", "supported", "hints"),
    [
        ("exact", ("precision", "optimizer_bits"), ["--numerics mixed", "--numerics compressed"]),
        ("mixed", ("precision", "optimizer_bits"), ["--numerics compressed"]),
        ("compressed", ("precision", "optimizer_bits"), []),
        ("exact", ("precision",), ["--numerics mixed"]),
        ("exact", ("remat",), []),
    ],
)
def test_numbers_that_may_be_touched_more_are_offered_where_a_lever_does_and_they_help(numerics, supported, hints):
    asked = []

    def would_fit(**changes):
        asked.append(changes)
        return OVER if changes.keys() == {"numerics"} else None

    assert advice(OVER, numerics=numerics, supported=supported, would_fit=would_fit) == hints
    assert [f"--numerics {changes['numerics']}" for changes in asked] == hints, "nothing is searched for in vain"
    assert advice(OVER, numerics=numerics, supported=supported) == [], "it would be refused again"


@pytest.mark.parametrize(("size", "helps"), [(20, False), (20.1, True), (50, True)])
def test_fewer_bytes_of_data_or_shorter_windows_are_offered_where_they_are_more_than_is_lacking(size, helps):
    rest = 120 - size
    data = smallest(process=rest, data=size)
    assert advice(data, data_advice="less data") == (["less data"] if helps else [])
    assert advice(data, data_advice="") == []
    step = smallest(process=rest, step_temporaries=size)
    assert advice(step, rate_unit="tokens") == (["a shorter --seq-len"] if helps else [])
    assert advice(step) == []


@pytest.mark.parametrize(
    ("state", "hints"),
    [(20, []), (21, ["a model of 48 parameters or fewer"]), (40, ["a model of 500 parameters or fewer"])],
)
def test_a_smaller_model_is_offered_where_its_state_is_more_than_is_lacking(state, hints):
    """Of a thousand parameters, 20 MiB less of so many."""
    assert advice(OVER, state=state) == hints
