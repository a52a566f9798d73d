"""What a refusal says, of plans whose bytes are known: the request, the floor with its parts, and what would help."""

from dataclasses import replace

import pytest

from planner_examples import STATIC, plan, problem
from plimsoll.planned import HostLedger, Ledger
from plimsoll.planner.evidence import Failure
from plimsoll.planner.explain import Priced
from plimsoll.planner.refusal import refusal
from plimsoll.units import MIB


def smallest(*, spare=0, host=None, **parts):
    """A plan whose parts are so many MiB."""
    predicted = {name.replace("_", " "): round(size * MIB) for name, size in parts.items()}
    book = Ledger(budget_bytes=100 * MIB, components=predicted, phase="train", host=host, spare_bytes=spare * MIB)
    return Priced(plan(), book, 1.0)


def never(**_changes):
    """Nothing else would fit either."""
    return False


def refused(least, would_fit=never, *, state=0, failures=(), **changes):
    """Of a thousand parameters; nothing besides what is asked for would help, whose rate is of examples."""
    static = replace(STATIC, parameters=1_000, parameter_bytes=state * MIB, optimizer_bytes=0)
    about = {"rate_unit": "examples", "numerics": "compressed", "supported": ()} | changes
    return refusal(problem(100 * MIB, **about), static, least, [Failure("compile", why) for why in failures], would_fit)


def advice(*arguments, **changes):
    """What could be done besides giving it the memory."""
    (could,) = (line for line in str(refused(*arguments, **changes)).splitlines() if line.startswith("  you could: "))
    return could.split(", or ")[1:]


def test_the_smallest_plan_its_parts_and_what_would_be_enough():
    """Parts of less than a MiB are not named; the largest comes first. What is spared is needed, too."""
    found = refused(smallest(process=70, data=2.5, parameters=50, carry=0.875, ema=1))
    assert (found.budget_bytes, found.floor_bytes) == (100 * MIB, 124 * MIB + 3 * MIB // 8)
    assert "100.0 MiB on cpu" in str(found)
    assert "124.4 MiB = process 70 + parameters 50 + data 2 + ema 1 (MiB), in the phase 'train'\n" in str(found)
    assert str(found).endswith("--memory 125MiB")
    spared = refused(smallest(process=120, spare=4))
    assert spared.floor_bytes == 124 * MIB
    assert "4.0 MiB kept free\n" in str(spared)
    assert str(spared).endswith("--memory 124MiB")


def test_a_trial_process_is_advised_where_its_smaller_margin_would_do():
    assert any("--measure" in hint for hint in advice(smallest(process=70, spare=64)))
    assert not any("--measure" in hint for hint in advice(smallest(process=80, spare=64)))
    assert not any("--measure" in hint for hint in advice(smallest(process=70, spare=64), prepares="try"))
    assert not any("--measure" in hint for hint in advice(smallest(process=120)))


def test_where_nothing_compiles_the_reasons_are_all_there_is():
    found = refused(None, failures=["one", "two"])
    assert "no plan of toy compiles and runs on cpu: 2 failed, the first as one." in str(found)
    assert (found.budget_bytes, found.floor_bytes) == (100 * MIB, None)


def test_where_plans_compile_and_none_runs_the_refusal_says_that():
    failures = [Failure("time", "killed by signal 9"), Failure("time", "another")]
    found = refusal(problem(100 * MIB, chip="h100"), STATIC, None, failures, never)
    assert "no plan of toy compiles and runs on h100: 2 failed" in str(found)
    assert "killed by signal 9" in str(found)
    assert found.floor_bytes is None


def test_a_host_that_is_too_small_is_told_where_the_device_is_not():
    def beside(budget, needed):
        return HostLedger(budget_bytes=budget * MIB, components={"process": needed * MIB}, phase="save")

    found = refused(smallest(parameters=100, host=beside(40, 50)), chip="h200")
    assert (found.budget_bytes, found.floor_bytes) == (40 * MIB, 50 * MIB)
    assert "fits in 40.0 MiB of a host's memory beside h200 (--host-memory)" in str(found)
    assert "50.0 MiB = process 50 (MiB), in the phase 'save'" in str(found)
    assert str(found).endswith("--host-memory 50MiB")
    for least in (smallest(parameters=101, host=beside(40, 50)), smallest(parameters=101, host=beside(50, 50))):
        assert refused(least).floor_bytes == 101 * MIB


def test_a_budget_that_is_named_works_and_what_no_device_has_is_not_named():
    """The plan that a refusal is of fits in what it names: on the device, and on the host beside it."""
    small = HostLedger(budget_bytes=40 * MIB, components={"process": 50 * MIB}, phase="save")
    both = refused(smallest(parameters=120, host=small), chip="h200", memory_bytes=120 * MIB)
    assert str(both).endswith("--memory 120MiB --host-memory 50MiB")
    assert both.floor_bytes == 120 * MIB
    larger = refused(smallest(parameters=120), chip="t4", memory_bytes=120 * MIB - 1)
    assert "--memory" not in str(larger)
    assert "a --chip with 120.0 MiB per device" in str(larger)


def test_only_what_was_compiled_is_the_smallest_that_was_found():
    assert "smallest found: 120.0 MiB" in str(refused(OVER))
    estimated = replace(OVER, ledger=replace(OVER.ledger, source="estimated"))
    assert "smallest found" not in str(refused(estimated))
    assert "estimated, without a compiler: 120.0 MiB" in str(refused(estimated))


OVER = smallest(process=70, step_temporaries=50)


def test_pins_are_to_be_left_out_by_their_flags_or_with_the_plan_that_they_came_from():
    pins = {"remat": "none", "loss_chunk": 0}
    assert advice(OVER, pins=pins) == [], "it would be refused again"
    freed = {"pins": {}}
    assert advice(OVER, lambda **changes: changes == freed, pins=pins) == ["leave out --loss-chunk, --remat"]
    (hint,) = advice(OVER, pins=pins, pinned_by="--plan x.json")
    assert hint.startswith("leave out --plan x.json")


@pytest.mark.parametrize(
    ("numerics", "supported", "hints"),
    [
        ("exact", ("precision", "optimizer_bits"), ["--numerics mixed", "--numerics compressed"]),
        ("mixed", ("precision", "optimizer_bits"), ["--numerics compressed"]),
        ("exact", ("precision",), ["--numerics mixed"]),
        ("exact", ("remat",), []),
    ],
)
def test_numbers_that_may_be_touched_more_are_offered_where_a_lever_does_and_they_help(numerics, supported, hints):
    asked = []

    def would_fit(**changes):
        asked.append(changes)
        return changes.keys() == {"numerics"}

    assert advice(OVER, would_fit, numerics=numerics, supported=supported) == hints
    assert [f"--numerics {changes['numerics']}" for changes in asked] == hints, "nothing is searched for in vain"
    assert advice(OVER, numerics=numerics, supported=supported) == [], "it would be refused again"


@pytest.mark.parametrize(("size", "helps"), [(20, False), (20.1, True)])
def test_fewer_bytes_of_data_or_shorter_windows_are_offered_where_they_are_more_than_is_lacking(size, helps):
    data = smallest(process=120 - size, data=size)
    assert advice(data, data_advice="less data") == (["less data"] if helps else [])
    assert advice(data, data_advice="") == []
    step = smallest(process=120 - size, step_temporaries=size)
    assert advice(step, rate_unit="tokens") == (["a shorter --seq-len"] if helps else [])
    assert advice(step) == []


@pytest.mark.parametrize(("state", "parameters"), [(20, []), (21, ["48"]), (40, ["500"])])
def test_a_smaller_model_is_offered_where_its_state_is_more_than_is_lacking(state, parameters):
    """20 MiB less of so many."""
    assert [hint.split()[3] for hint in advice(OVER, state=state)] == parameters
