"""The values that meet between rooms survive JSON, because they meet between processes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planned import Plan
from plimsoll.types import Compute, Levers

levers = st.builds(
    Levers,
    micro_batch=st.integers(1, 512),
    remat=st.sampled_from(["none", "dots", "block"]),
    loss_chunk=st.sampled_from([0, 256]),
    precision=st.sampled_from(["float32", "bfloat16"]),
    prefetch=st.integers(1, 8),
    async_save=st.booleans(),
    activations=st.sampled_from(["float32", "bfloat16"]),
    unroll=st.integers(0, 99),
)
plans = st.builds(
    Plan,
    chip=st.sampled_from(["cpu", "h200"]),
    accumulation=st.integers(1, 512),
    levers=levers,
    pinned=st.lists(st.sampled_from(["remat", "precision"]), unique=True).map(tuple),
)


@given(plans)
def test_a_plan_survives_json(plan):
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert hash(again) == hash(plan)  # the search keeps plans in sets


@given(plans)
def test_a_model_sees_the_plan_it_was_built_for(plan):
    seen = plan.compute("tpu")
    assert seen == Compute(platform="tpu", levers=plan.levers)
    for name in ("precision", "activations", "remat", "loss_chunk"):
        assert getattr(seen, name) == seen.lever(name) == plan.lever(name)
    assert plan.effective_batch == plan.micro_batch * plan.accumulation
    assert plan.numerics == ("mixed" if "bfloat16" in (plan.precision, plan.lever("activations")) else "exact")


def test_a_plan_that_was_written_before_a_lever_was_there_has_it_off():
    plan = Plan(
        chip="cpu",
        accumulation=2,
        levers=Levers(micro_batch=4, remat="none", loss_chunk=0, precision="float32", prefetch=2, async_save=True),
    )
    older = plan.to_dict()
    assert older.pop("layerwise") == 0
    assert Plan.from_dict(older) == plan
