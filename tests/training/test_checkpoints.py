"""A checkpoint is whole or it is not there; what is damaged is noticed, and what is not finite is refused."""

import errno
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.errors import CheckpointError, StoppedError
from plimsoll.files.manifest import damage, finish
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.environment import for_processes
from plimsoll.training import checkpoints as module
from plimsoll.training.checkpoints import Checkpoints, load_arrays, read_leaves
from plimsoll.training.fingerprint import fingerprint
from plimsoll.units import MIB
from programs import printed

POSITION = {"document": 3, "offset": 17}


def make_state(seed=0, *, width=300):
    """Every kind of leaf a state has: matrix, vector, scalar, integer, half width, nothing."""
    random = np.random.default_rng(seed)
    return {
        "step": jnp.int32(seed),
        "key": jnp.asarray(random.integers(0, 2**32, 2, np.uint32)),
        "params": {"trainable": {"kernel": jnp.asarray(random.normal(size=(width, 64)), jnp.float32)}},
        "optimizer": (jnp.asarray(random.integers(0, 256, 99), jnp.uint8), jnp.ones(5, jnp.bfloat16)),
        "empty": jnp.zeros((0, 3)),
        "carry": None,
    }


def shapes(state):
    return jax.eval_shape(lambda: state)


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def saved_to(folder, *, in_background=False, **options):
    return Checkpoints(RunFolder(folder), in_background=in_background, **options)


@pytest.fixture
def saved_twice(tmp_path):
    checkpoints = saved_to(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, make_state(step), POSITION | {"offset": step})
    return checkpoints


def newest(checkpoints):
    return checkpoints.folder.checkpoint(checkpoints.folder.saved_steps()[-1])


def test_what_was_saved_is_loaded_to_the_last_bit(saved_twice):
    loaded, notes = saved_twice.newest(shapes(make_state(2)))
    assert_same_bits(loaded.state, make_state(2))
    assert (loaded.position.step, loaded.position.loader, notes) == (2, POSITION | {"offset": 2}, [])


def test_any_program_of_orbax_reads_a_checkpoint(saved_twice):
    from orbax.checkpoint import v1 as ocp

    kernel = ocp.load(str(newest(saved_twice) / "state"))["['params']['trainable']['kernel']"]
    np.testing.assert_array_equal(kernel, make_state(2)["params"]["trainable"]["kernel"])


def test_what_is_loaded_is_donated_in_place(tmp_path):
    """Memory of NumPy's that JAX has taken over is not: the first step would need further memory for each such leaf."""
    double = jax.jit(lambda state: jax.tree.map(lambda x: 2 * x, state), donate_argnums=0)
    numbers = {f"{number:02}": np.arange(1000 + 97 * number, dtype=np.float32) for number in range(32)}
    state = jax.device_put(numbers)
    checkpoints = saved_to(tmp_path)
    checkpoints.save(1, state, POSITION)
    loaded = checkpoints.newest(shapes(state))[0].state
    places = jax.tree.map(lambda leaf: leaf.unsafe_buffer_pointer(), loaded)
    doubled = jax.block_until_ready(double(loaded))
    assert jax.tree.map(lambda leaf: leaf.unsafe_buffer_pointer(), doubled) == places
    assert_same_bits(doubled, jax.tree.map(lambda leaf: 2 * leaf, numbers))


def test_a_saved_state_holds_values_even_if_its_buffers_are_donated_at_once(tmp_path):
    """In the background the next step runs while Orbax still writes: it must not see the next step's numbers."""
    change = jax.jit(lambda state: jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state), donate_argnums=0)
    checkpoints = saved_to(tmp_path, in_background=True)
    state = jax.block_until_ready(change(make_state(width=60_000)))  # 15 MiB
    expected = jax.tree.map(np.array, state)
    checkpoints.save(1, state, POSITION)
    for _ in range(20):
        state = change(state)
    jax.block_until_ready(state)
    checkpoints.wait()
    assert_same_bits(load_arrays(newest(checkpoints), shapes(state)), expected)


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def truncate(folder):
    path = largest_file(folder)
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(folder):
    path = largest_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_position(folder):
    (folder / "position.json").unlink()


def nonsense_manifest(folder):
    (folder / "manifest.json").write_text("[1, 2]")


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit, remove_position, nonsense_manifest])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(saved_twice, spoil):
    folder = newest(saved_twice)
    for number in (1, 2):
        spoil(folder)
        loaded, notes = saved_twice.newest(shapes(make_state(1)))
        assert loaded.position.step == 1
        assert_same_bits(loaded.state, make_state(1))
        (note,) = notes
        assert "checkpoint 2 is damaged" in note
        assert f"damaged-step-00000002-{number}" in note
        assert folder.with_name(f"damaged-step-00000002-{number}").is_dir()
        saved_twice.save(2, make_state(2), POSITION)  # and the step can be saved again
        assert saved_twice.newest(shapes(make_state(1)))[0].position.step == 2
    for step in (1, 2):
        spoil(saved_twice.folder.checkpoint(step))
    loaded, notes = saved_twice.newest(shapes(make_state()))
    assert (loaded, len(notes)) == (None, 2)


@pytest.mark.parametrize("left", ["state", "all but the manifest", "nothing"])
def test_what_a_killed_save_or_removal_left_is_removed(saved_twice, left):
    unfinished = newest(saved_twice)
    (unfinished / "manifest.json").unlink()
    if left != "all but the manifest":
        (unfinished / "position.json").unlink()
    if left == "nothing":
        shutil.rmtree(unfinished / "state")
    assert saved_twice.folder.saved_steps() == [1]
    loaded, notes = saved_twice.newest(shapes(make_state()))
    assert loaded.position.step == 1
    assert not unfinished.exists()
    assert len(notes) == (left == "all but the manifest")
    assert all("checkpoint 2 has no manifest.json" in note for note in notes), "it may have been whole"


@pytest.mark.parametrize(("value", "in_background"), [(np.nan, False), (np.inf, True), (-np.inf, True)])
def test_a_state_that_is_not_finite_is_refused_and_nothing_is_replaced(saved_twice, value, in_background):
    checkpoints = Checkpoints(saved_twice.folder, in_background=in_background)
    state = make_state(3)
    state["params"]["trainable"]["kernel"] = state["params"]["trainable"]["kernel"].at[-1, -1].set(value)
    with pytest.raises(StoppedError, match=r"step 3: .*kernel.* is not finite.*--learning-rate") as refused:
        checkpoints.save(3, state, POSITION)
    assert refused.value.exit_code == 3
    assert checkpoints.folder.saved_steps() == [1, 2]
    assert damage(newest(checkpoints)) is None


def test_the_last_two_and_the_best_are_kept(saved_twice):
    saved_twice.best_step = 1
    for step, kept in ((3, [1, 2, 3]), (4, [1, 3, 4])):
        saved_twice.save(step, make_state(step), POSITION)
        assert saved_twice.folder.saved_steps() == kept
    saved_twice.best_step = 5
    saved_twice.save(5, make_state(5), POSITION)
    assert saved_twice.folder.saved_steps() == [4, 5]


def test_a_state_of_another_shape_is_refused_by_the_leaf(saved_twice):
    with pytest.raises(CheckpointError, match=r"kernel.*\(300, 64\).*\(301, 64\)"):
        load_arrays(newest(saved_twice), shapes(make_state(2, width=301)))


def test_a_checkpoint_of_another_version_is_refused_in_a_sentence(saved_twice):
    folder = newest(saved_twice)
    (folder / "position.json").rename(folder / "state.json")
    finish(folder)
    with pytest.raises(CheckpointError, match=r"step-00000002/position.json is not as this version .* --run"):
        saved_twice.newest(shapes(make_state(2)))


@pytest.mark.parametrize(
    "altered",
    [
        {"step": "2"},
        {"loader": []},
        {"plan": None},
        {"leaves": 5},
        {"leaves": [["a", 3, "float32"]]},
        {"leaves": [["a", ["3"], "float32"]]},
        {"leaves": [["a", [3]]]},
    ],
    ids=str,
)
def test_a_position_of_other_types_is_refused_in_a_sentence(saved_twice, altered):
    path = newest(saved_twice) / "position.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | altered))
    with pytest.raises(CheckpointError, match=r"position.json is not as this version .* Put a copy"):
        saved_twice.folder.position(2)


@pytest.mark.parametrize("writer", ["replace_file", "finish", "begin_save"])
def test_a_write_that_fails_anywhere_leaves_the_last_good_checkpoint(saved_twice, monkeypatch, writer):
    def fail(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, writer, fail)
    with pytest.raises(StoppedError, match="disk is full"):
        saved_twice.save(3, make_state(3), POSITION)
    assert not saved_twice.folder.checkpoint(3).exists()
    assert saved_twice.folder.saved_steps() == [1, 2]


def test_the_failure_of_a_background_save_is_raised_by_the_next_one(saved_twice, monkeypatch):
    def fail(*_args, **_kwargs):
        raise OSError(errno.EIO, "Input/output error")

    checkpoints = Checkpoints(saved_twice.folder, in_background=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "replace_file", fail)
        checkpoints.save(3, make_state(3), POSITION)
        with pytest.raises(StoppedError, match=r"step 3 could not be saved.*Input/output error"):
            checkpoints.save(4, make_state(4), POSITION)
    checkpoints.save(5, make_state(5), POSITION)
    checkpoints.wait()
    assert checkpoints.folder.saved_steps() == [2, 5]


def fingerprint_of_state(state, position=POSITION):
    leaves = [(path, np.asarray(leaf)) for path, leaf in module.leaves_of(state)]
    return fingerprint(leaves, position)


@pytest.mark.parametrize(
    "other",
    [
        {"step": jnp.int32(3)},
        {"key": make_state(3)["key"]},
        {"params": make_state(3)["params"]},
        {"optimizer": make_state(3)["optimizer"]},
        {"carry": jnp.zeros(2)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_every_part_of_the_state_is_in_the_fingerprint(other):
    assert fingerprint_of_state(make_state(2) | other) != fingerprint_of_state(make_state(2))


def test_the_fingerprint_is_of_what_was_saved_and_of_the_position_in_the_data(saved_twice):
    position = json.loads(json.dumps(saved_twice.folder.position(2).loader))
    saved = fingerprint(read_leaves(newest(saved_twice)), position)
    assert saved == fingerprint_of_state(make_state(2), POSITION | {"offset": 2})
    assert saved != fingerprint_of_state(make_state(2), POSITION | {"offset": 18})


def with_frozen(state):
    params = state["params"] | {"frozen": {"base": jnp.arange(6, dtype=jnp.uint16), "frozen": {}}}
    return state | {"params": params}


def test_frozen_weights_that_are_read_from_elsewhere_are_not_saved(tmp_path):
    checkpoints = saved_to(tmp_path, frozen=False)
    state = with_frozen(make_state(1))
    checkpoints.save(1, state, POSITION)
    assert not any("frozen" in path for path, _ in read_leaves(newest(checkpoints)))
    assert_same_bits(checkpoints.newest(shapes(state))[0].state, make_state(1))
    with pytest.raises(CheckpointError, match=r"does not fit the recipe: \['params'\]\['frozen'\]\['base'\] is None"):
        saved_to(tmp_path).newest(shapes(state))


ON_DEVICES = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from plimsoll.files.run_folder import RunFolder
from plimsoll.training.checkpoints import Checkpoints
checkpoints = Checkpoints(RunFolder(sys.argv[1]), in_background=False)
numbers = np.arange(64 * 24, dtype=np.float32).reshape(64, 24)
for count in (8, 4, 2):
    mesh = Mesh(np.array(jax.devices()[:count]), ("fsdp",))
    split, whole = NamedSharding(mesh, PartitionSpec("fsdp")), NamedSharding(mesh, PartitionSpec())
    state = {"split": jax.device_put(numbers, split), "whole": jax.device_put(numbers + 1, whole)}
    if count == 8:
        checkpoints.save(1, state, {})
    loaded, notes = checkpoints.newest(state)
    assert not notes
    for name, leaf in state.items():
        assert loaded.state[name].sharding == leaf.sharding
        np.testing.assert_array_equal(loaded.state[name], leaf)
"""


def test_what_eight_devices_saved_is_read_on_four_two_and_one(tmp_path):
    printed(ON_DEVICES, tmp_path, environment=for_processes("cpu", devices=8))
    numbers = jnp.arange(64 * 24, dtype=jnp.float32).reshape(64, 24)
    loaded, notes = saved_to(tmp_path).newest(shapes({"split": numbers, "whole": numbers}))
    assert (loaded.position.step, notes) == (1, [])
    assert_same_bits(loaded.state, {"split": numbers, "whole": numbers + 1})


BESIDE_A_SAVE = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from plimsoll.files.run_folder import RunFolder
from plimsoll.training import memory
from plimsoll.training.checkpoints import Checkpoints
checkpoints = Checkpoints(RunFolder(sys.argv[1]), in_background=False)
state = {str(number): jax.device_put(np.full(2_500_000, number, np.float32)) for number in range(8)}
for step in (1, 2):
    Path("/proc/self/clear_refs").write_text("5")
    before = memory.resident_bytes()
    checkpoints.save(step, state, {})
print(memory.peak_resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the largest resident set is set back on Linux alone")
def test_a_save_of_80_mb_takes_no_8_mib_beside_the_state(tmp_path):
    assert int(printed(BESIDE_A_SAVE, tmp_path, environment=for_processes("cpu"))) < 8 * MIB
