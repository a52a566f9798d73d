"""What a device holds, and that a step split over devices is the same step."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from plimsoll.levers.sharding import FSDP, SMALLEST_SPLIT, by_rows, device_bytes, leaf_spec, like_state

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


def test_small_leaves_stay_whole():
    assert leaf_spec((64, 64), fsdp=8) == PartitionSpec()


def test_outside_a_mesh_nothing_changes():
    x = jnp.ones((4, 4))
    assert by_rows(x) is x
    assert like_state({"x": x})["x"] is x


@pytest.fixture(scope="module")
def spread():
    """A process with eight devices trains the same three steps whole and split; this one has a single device."""
    script = Path(__file__).parents[1] / "support/spread_steps.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", ["1", "4", "8"])
def test_parameters_after_three_steps_agree_with_one_device(spread, fsdp):
    assert spread[fsdp]["difference"] < 1e-6


@pytest.mark.slow
def test_each_device_really_holds_its_share(spread):
    assert spread["1"]["held_bytes"] == spread["1"]["whole_bytes"]
    for fsdp in ("4", "8"):
        assert spread[fsdp]["held_bytes"] == spread[fsdp]["predicted_bytes"]
        assert spread[fsdp]["held_bytes"] < spread[fsdp]["whole_bytes"] / int(fsdp) * 1.1


@pytest.mark.slow
def test_the_compiler_needs_less_per_device_when_the_state_is_split(spread):
    assert spread["8"]["argument_bytes"] < spread["4"]["argument_bytes"] < spread["1"]["argument_bytes"]
    assert spread["8"]["temp_bytes"] < spread["1"]["temp_bytes"]
