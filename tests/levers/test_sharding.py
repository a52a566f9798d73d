"""What a device holds, and that a step split over devices is the same step."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from plain_code import PLAIN_CODE
from plimsoll.levers import sharding
from plimsoll.levers.sharding import (
    DATA,
    FSDP,
    ROWS,
    SMALLEST_SPLIT,
    by_rows,
    device_bytes,
    in_micro_batches,
    joined,
    leaf_spec,
    like_state,
    over_copies,
    rows_spec,
)

SHAPES = st.lists(st.integers(1, 4096), min_size=1, max_size=3)


@given(shape=SHAPES, fsdp=st.sampled_from([1, 2, 4, 8, 32]))
def test_a_leaf_is_split_along_one_axis_that_divides_or_not_at_all(shape, fsdp):
    spec = leaf_spec(shape, fsdp=fsdp)
    split = [axis for axis, name in enumerate(spec) if name == FSDP]
    assert len(split) <= 1
    assert all(shape[axis] % fsdp == 0 for axis in split)
    if fsdp > 1 and jnp.prod(jnp.array(shape, jnp.float32)) >= SMALLEST_SPLIT:
        assert bool(split) == any(size % fsdp == 0 for size in shape)


@given(shape=SHAPES)
def test_devices_hold_their_share_to_the_byte(shape):
    leaf = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
    whole, share = device_bytes({"leaf": leaf}, fsdp=1), device_bytes({"leaf": leaf}, fsdp=8)
    assert whole == 4 * leaf.size
    assert share == whole // 8 if FSDP in leaf_spec(shape, fsdp=8) else share == whole


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((29, 1856, 4928), 1),  # 4,928 over eight are 616, which are no whole blocks of 64
        ((29, 4928, 1856), 1),
        ((24, 2048, 8192), 2),
        ((50_257, 1856), 1),
        ((50_264, 1000), 0),  # a part of either axis is no whole blocks of a row: the largest
        ((32, 16, 11_008), 2),  # not the rank of an adapter, and not the layers
        ((24, 1000, 1000), 2),
        ((32, 4928), 1),
    ],
)
def test_a_part_is_whole_blocks_where_an_axis_gives_them(shape, axis):
    assert tuple(leaf_spec(shape, fsdp=8)).index(FSDP) == axis


@pytest.fixture
def eight():
    """Two copies on four devices each, of which nothing is there: enough to trace with."""
    automatic = (AxisType.Auto, AxisType.Auto)  # as of a mesh of devices
    with jax.sharding.use_abstract_mesh(AbstractMesh((2, 4), ("data", "fsdp"), axis_types=automatic)):
        yield


def constrained(function, *shapes):
    """The specs that a traced function asks for, in order."""
    traced = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    found = [each for each in traced.eqns if each.primitive.name == "sharding_constraint"]
    return [each.params["sharding"].spec for each in found]


@pytest.mark.usefixtures("eight")
def test_in_a_mesh_rows_are_split_over_all_devices_and_gradients_as_weights_are():
    assert rows_spec() == ROWS
    (spec,) = constrained(by_rows, (16, 3))
    assert tuple(spec)[:1] == (("data", "fsdp"),)
    (spec,) = constrained(lambda x: by_rows(x, axis=1), (2, 16, 3))
    assert tuple(spec)[:2] == (None, ("data", "fsdp"))
    large, small = constrained(lambda x, y: like_state([x, y]), (512, 128), (8, 8))
    assert tuple(large)[:1] == ("fsdp",)
    assert not any(small)
    (batch,) = constrained(lambda x: in_micro_batches(x, 2), (32, 3))
    assert tuple(batch)[:2] == (None, ("data", "fsdp"))
    (whole,) = constrained(joined, (2, 16, 3))
    assert tuple(whole)[:1] == (("data", "fsdp"),)


def psums(function, tree):
    """How often a traced function sums over devices, and what it returns for `tree` where there is one."""
    alone = jax.make_mesh((1, 1), (DATA, FSDP), axis_types=(AxisType.Auto,) * 2)
    whole = PartitionSpec()
    with jax.set_mesh(alone):
        spread = jax.shard_map(function, axis_names={DATA}, in_specs=(whole,), out_specs=whole, check_vma=False)
        traced = jax.make_jaxpr(spread)(tree)
        (inside,) = [each.params["jaxpr"] for each in traced.eqns if each.primitive.name == "shard_map"]
        return sum(len(each.invars) for each in inside.eqns if "psum" in each.primitive.name), jax.jit(spread)(tree)


def test_sums_that_go_together_are_few_and_the_same():
    tree = {
        "small": [jnp.arange(n * 3.0).reshape(n, 3) for n in range(1, 10)],
        "large": jnp.arange(2.0**20),
        "half": jnp.ones((4, 5), jnp.bfloat16),
        "counted": jnp.int32(7),
        "loss": jnp.float32(0.5),
    }
    each, by_leaf = psums(over_copies, tree)
    few, together = psums(partial(over_copies, in_few=True), tree)
    assert each == 13
    assert few == 4  # the large one, the small ones with the loss, and two further types
    assert jax.tree.structure(together) == jax.tree.structure(tree)
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype and bool((a == b).all()), together, by_leaf)
    assert jax.tree.all(same)


def test_in_a_mesh_each_micro_batch_takes_some_of_every_devices_own_examples(monkeypatch):
    """Twelve examples, three of each of four devices, in three micro-batches: one of each device's."""
    monkeypatch.setattr(sharding, "in_mesh", lambda: True)
    mesh = AbstractMesh((4,), ("data",))
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: mesh)
    monkeypatch.setattr(sharding, "by_rows", lambda x, axis=0: x)
    batch = jnp.arange(12.0)[:, None]
    micro = in_micro_batches(batch, 3)
    assert micro[..., 0].tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert joined(micro).tolist() == batch.tolist()
    two = in_micro_batches(jnp.arange(16.0)[:, None], 2)
    assert two[..., 0].tolist() == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]


@pytest.mark.slow
def test_three_steps_on_eight_devices_are_those_of_one_and_each_holds_its_share():
    """A process with eight devices trains the same three steps whole and split; this one has a single device."""
    script = Path(__file__).parents[1] / "support/spread_steps.py"
    environment = os.environ | {"XLA_FLAGS": PLAIN_CODE}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    spread = json.loads(done.stdout.splitlines()[-1])
    assert all(spread[fsdp]["difference"] < 1e-6 for fsdp in ("1", "4", "8")), spread
    assert spread["1"]["held_bytes"] == spread["1"]["whole_bytes"]
    for fsdp in ("4", "8"):
        assert spread[fsdp]["held_bytes"] == spread[fsdp]["predicted_bytes"]
        assert spread[fsdp]["held_bytes"] < spread[fsdp]["whole_bytes"] / int(fsdp) * 1.1

    # The compiler needs less.
    assert spread["8"]["argument_bytes"] < spread["4"]["argument_bytes"] < spread["1"]["argument_bytes"]
    assert spread["8"]["temp_bytes"] < spread["1"]["temp_bytes"]

    # Attention, whether devices share the examples equally or not.
    assert all(spread["attention"][examples] < 1e-6 for examples in ("1", "6", "8", "16")), spread["attention"]
