"""Rates of a card: what is counted as work is work, and what starting a call costs is no part of a rate."""

import math

import jax
import jax.numpy as jnp
import pytest

from for_cuda import answer_for_cuda
from plimsoll.engine import rates
from plimsoll.engine.rates import CALL_SECONDS, LAUNCHES, seconds_each
from plimsoll.engine.rates import card_rates as measured
from plimsoll.planner.flops import dots

STRICT = True

LATENCY = 100e-6
"""Seconds, about, that starting a call and waiting for it took on an H100 (notes, "The card that is here")."""


class Machine:
    """A clock, and a device that needs `seconds` for a round of work and LATENCY for a call; a first one compiles."""

    def __init__(self, seconds, *, hiccup_at=()):
        self.now, self.seconds, self.calls, self.seen, self.hiccup_at = 0.0, seconds, [], set(), hiccup_at

    def clock(self):
        return self.now

    def call(self, count):
        self.now += LATENCY + count * self.seconds + (0.0 if count in self.seen else 2.0)
        self.now += 0.5 if len(self.calls) in self.hiccup_at else 0.0
        self.seen.add(count)
        self.calls.append(count)


@pytest.mark.parametrize("seconds", [1.3e-6, 1.4e-3, 22e-3, 0.9])
@pytest.mark.parametrize("hiccup_at", [(), (1,), (0, 1, 2, 4, 7, 8)])
def test_a_rate_is_work_over_time_whatever_a_call_costs(seconds, hiccup_at):
    machine = Machine(seconds, hiccup_at=hiccup_at)
    assert seconds_each(machine.call, machine.clock) == pytest.approx(seconds, rel=2e-3 + LATENCY / CALL_SECONDS)
    assert machine.calls[-1] * seconds > 0.9 * CALL_SECONDS


def test_an_h100_is_not_reported_at_a_hundredth_of_its_rate():
    """A product of 1,024 x 512 x 1,024, one call at a time: 8 TFLOP/s were reported for a card that does 800."""
    work, rate = 2 * 1024 * 512 * 1024, 800e12
    machine = Machine(work / rate)
    one_at_a_time = work / (LATENCY + work / rate)
    assert one_at_a_time < 0.02 * rate
    assert work / seconds_each(machine.call, machine.clock) == pytest.approx(rate, rel=0.002)


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("precision", rates.DOTS)
def test_a_call_does_the_work_that_it_is_credited_with(precision, count):
    side, dtype = 64, rates.DOTS[precision][0]
    kernel = jax.ShapeDtypeStruct((side, side), dtype)
    jaxpr = rates.products.trace(kernel, precision, count).jaxpr
    assert dots(jaxpr).flops == count * rates.IN_A_ROUND * 2 * side**3
    assert jaxpr.out_avals[0].dtype == dtype  # else a copy from float32 would be timed, too


def test_a_chain_of_launches_has_as_many_kernels():
    array = jnp.ones(rates.SMALL, jnp.float32)
    lowered = rates.launches.lower(array, 7)
    assert lowered.as_text(dialect="hlo").count("opt-barrier(") == LAUNCHES
    assert float(lowered.compile()(array)[0]) == pytest.approx(1.0001 ** (7 * LAUNCHES), rel=1e-4)


def test_rounds_of_a_copy_are_not_joined():
    """Three multiplications of one round would read and write the array once."""
    array = jnp.ones(1000, jnp.float32)
    compiled = rates.copies.lower(array, 3).compile()
    assert float(compiled(array)[0]) == pytest.approx(1.0001**3)
    assert "opt-barrier" in rates.copies.lower(array, 3).as_text(dialect="hlo")


def test_all_rates_are_measured_from_the_clock_that_is_given(monkeypatch):
    """With a clock that moves by a second at each look, a call takes a second: every rate follows from the sizes."""
    monkeypatch.setattr(rates, "SIDE", 64)
    monkeypatch.setattr(rates, "COPIED_BYTES", 2**20)
    monkeypatch.setattr(rates, "SENT_BYTES", 2**20)
    ticks = iter(range(10_000))
    found = measured(lambda: float(next(ticks)))
    side = 64
    work = rates.IN_A_ROUND * 2 * side**3
    assert found.flops == {"float32": work, "bfloat16": work, "float16": work}  # a CPU refuses TF32
    assert found.copy_bytes == 2 * 2**20
    assert found.dot_seconds == 1 / LAUNCHES
    assert math.isinf(found.first_touch_bytes)


FOR_AN_H100 = """
import jax, jax.numpy as jnp, json
from jax.sharding import SingleDeviceSharding
from plimsoll.engine import rates
from plimsoll.planner import chips, topology

here = SingleDeviceSharding(topology.devices(chips.chip("h100"))[0])
kernel = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16, sharding=here)
array = jax.ShapeDtypeStruct((2**28,), jnp.float32, sharding=here)
small = jax.ShapeDtypeStruct((rates.SMALL,), jnp.float32, sharding=here)
lowered = {
    "products": rates.products.lower(kernel, "bfloat16", 100),
    "copies": rates.copies.lower(array, 100),
    "launches": rates.launches.lower(small, 100),
}
print(json.dumps({name: each.compile().as_text() for name, each in lowered.items()}))
"""


@pytest.mark.slow
def test_nvidias_compiler_leaves_the_work_of_a_round_as_it_is():
    """No round is joined with the next, and none copies what the round before has made."""
    texts = answer_for_cuda(FOR_AN_H100)
    kernels = {"products": rates.IN_A_ROUND, "copies": 1, "launches": LAUNCHES}
    for name, text in texts.items():
        assert '"known_trip_count":{"n":"100"}' in text
        body = next(part for part in text.split("\n\n") if part.startswith("%region") and "-> (s32[]" in part)
        counting = 1
        assert body.count(" fusion(") + body.count(" custom-call(") == kernels[name] + counting, name
        assert " copy(" not in body
