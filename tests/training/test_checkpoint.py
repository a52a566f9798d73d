"""A checkpoint is whole or it is not there; what is damaged is noticed, and what is not finite is refused."""

import errno
import json
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from plimsoll.errors import CheckpointError, StoppedError
from plimsoll.training import checkpoint, distributed, saved_arrays
from plimsoll.training.checkpoint import Checkpoints, damage, fingerprint, load_part, loader_position, read_leaves
from told import Told

POSITION = {"document": 3, "offset": 17}


def make_state(seed=0, *, width=300):
    """Every kind of leaf a state has: matrix, vector, scalar, integer, half width, nothing."""
    random = np.random.default_rng(seed)
    return {
        "step": jnp.int32(seed),
        "key": jnp.asarray(random.integers(0, 2**32, 2, np.uint32)),
        "params": {"trainable": {"kernel": jnp.asarray(random.normal(size=(width, 64)), jnp.float32)}},
        "optimizer": {"codes": jnp.asarray(random.integers(0, 256, 99), jnp.uint8), "half": jnp.ones(5, jnp.bfloat16)},
        "carry": None,
    }


def shapes(state):
    return jax.eval_shape(lambda: state)


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture
def saved_twice(tmp_path):
    checkpoints = Checkpoints(tmp_path, in_background=False)
    for step in (1, 2):
        checkpoints.save(step, make_state(step), POSITION | {"offset": step})
    return checkpoints


def test_what_was_saved_is_loaded_to_the_last_bit(saved_twice):
    newest = saved_twice.all()[0]
    state, position = load_part(newest, shapes(make_state(2))), loader_position(newest)
    assert_same_bits(state, make_state(2))
    assert position == POSITION | {"offset": 2}


def test_leaves_larger_than_a_slice_are_cut_and_put_together_again(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_arrays, "SLICE_BYTES", 1000)  # 77 slices, the last one short
    checkpoints = Checkpoints(tmp_path, in_background=False)
    checkpoints.save(1, make_state(), POSITION)
    assert_same_bits(load_part(checkpoints.all()[0], shapes(make_state())), make_state())


def test_what_is_loaded_is_donated_in_place(tmp_path):
    """Memory of NumPy's that JAX has taken over is not: the first step would need further memory for each such leaf."""
    double = jax.jit(lambda state: jax.tree.map(lambda x: 2 * x, state), donate_argnums=0)
    state = {f"{number:02}": jnp.arange(1000 + 97 * number, dtype=jnp.float32) for number in range(32)}
    checkpoints = Checkpoints(tmp_path, in_background=False)
    checkpoints.save(1, state, POSITION)
    loaded = load_part(checkpoints.all()[0], shapes(state))
    places = jax.tree.map(lambda leaf: leaf.unsafe_buffer_pointer(), loaded)
    doubled = jax.block_until_ready(double(loaded))
    assert jax.tree.map(lambda leaf: leaf.unsafe_buffer_pointer(), doubled) == places
    assert_same_bits(doubled, jax.tree.map(lambda leaf: 2 * leaf, state))


def test_a_saved_state_holds_values_even_if_its_buffers_are_donated_at_once(tmp_path):
    """In the background the next step runs while Orbax still writes: it must not see the next step's numbers."""
    change = jax.jit(lambda state: jax.tree.map(lambda x: x + jnp.ones((), x.dtype), state), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, in_background=True)
    state = jax.block_until_ready(change(make_state(width=60_000)))  # 15 MiB: four slices, two in flight
    expected = jax.tree.map(np.array, state)
    checkpoints.save(1, state, POSITION)
    for _ in range(20):
        state = change(state)
    jax.block_until_ready(state)
    checkpoints.wait()
    assert_same_bits(load_part(checkpoints.all()[0], shapes(state)), expected)


def files_of(saved):
    return sorted(path for path in saved.path.rglob("*") if path.is_file())


def damaged_by_flips(saved):
    """Names of the files of which no bit in the middle can be turned unnoticed; the others."""
    unnoticed = []
    for path in files_of(saved):
        whole = path.read_bytes()
        if not whole:
            continue
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 1
        path.write_bytes(flipped)
        if damage(saved) is None:
            unnoticed.append(path.name)
        path.write_bytes(whole)
    return unnoticed


def test_a_flipped_bit_is_noticed_in_every_file(saved_twice):
    newest = saved_twice.all()[0]
    assert len(files_of(newest)) > 5
    assert damaged_by_flips(newest) == []
    assert damage(newest) is None


def test_a_truncated_or_missing_file_is_noticed_whichever_it_is(saved_twice):
    newest = saved_twice.all()[0]
    for path in files_of(newest):
        whole = path.read_bytes()
        if whole:
            path.write_bytes(whole[:-1])
            assert damage(newest) is not None, f"{path} truncated"
        path.unlink()
        assert damage(newest) is not None, f"{path} missing"
        path.write_bytes(whole)
    assert damage(newest) is None


@pytest.mark.parametrize("damaged", [False, True])
def test_several_processes_each_read_a_share_and_find_what_one_would(saved_twice, monkeypatch, damaged):
    newest, own, read = saved_twice.all()[0], threading.local(), {0: [], 1: [], 2: []}
    store, content_of = Told(), checkpoint.content_of

    def noted(path):
        read[own.number].append(path)
        return content_of(path)

    monkeypatch.setattr(checkpoint, "content_of", noted)
    monkeypatch.setattr(distributed, "Board", lambda: store)
    monkeypatch.setattr(distributed, "process", lambda: own.number)
    monkeypatch.setattr(distributed, "processes", lambda: 3)
    files = [path for path in files_of(newest) if path.name != "manifest.json"]
    if damaged:
        files[-1].write_bytes(files[-1].read_bytes()[:-1] + b"?")

    def of(number):
        own.number = number
        checkpoints = Checkpoints(saved_twice.folder, in_background=False)
        if number:
            return checkpoints._checked_for_the_first(store)
        found = [checkpoints._damage_by_all(newest) for _ in range(2)]
        store.write("newest", 7)
        return found

    with ThreadPoolExecutor(3) as threads:
        found, *others = threads.map(of, range(3))
    assert others == [7, 7]
    assert found == [f"{files[-1].relative_to(newest.path)} has changed since it was written" if damaged else None] * 2
    assert {path for paths in read.values() for path in paths} == set(files)
    sizes = [len(paths) for paths in read.values()]
    assert sum(sizes) == 2 * len(files)
    assert max(sizes) - min(sizes) <= 2


@pytest.fixture
def three(monkeypatch):
    """Runs a function of a process's number in three threads, each a process."""
    store, own = Told(), threading.local()
    monkeypatch.setattr(distributed, "Board", lambda: store)
    monkeypatch.setattr(distributed, "process", lambda: own.number)
    monkeypatch.setattr(distributed, "processes", lambda: 3)

    def run(of):
        def one(number):
            own.number = number
            return of(number)

        with ThreadPoolExecutor(3) as threads:
            return [*threads.map(one, range(3))]

    return run


@pytest.mark.parametrize("who", [{0}, {1}, {0, 1, 2}])
def test_one_of_several_saves_alone_what_it_holds_whole(three, tmp_path, who):
    """The others are in an evaluation, and take no part."""

    def save(number):
        checkpoints = Checkpoints(tmp_path / str(number), in_background=True, shared=tmp_path)
        if number in who:
            checkpoints.save_alone(1, make_state(1), POSITION)
            assert [saved.step for saved in checkpoints.all()] == [1]

    three(save)
    saved = Checkpoints(tmp_path, in_background=False).all()[0]
    assert damage(saved) is None
    assert_same_bits(load_part(saved, shapes(make_state(1))), make_state(1))
    assert loader_position(saved) == POSITION


@pytest.mark.parametrize(("split", "sees", "who", "saved"), [
    (False, True, 1, [1]), (True, True, 1, []), (False, False, 1, []), (False, False, 0, [1]), (True, False, 0, []),
])  # fmt: skip
def test_what_one_of_several_does_not_hold_whole_or_has_no_folder_for_is_not_saved(
    three, tmp_path, split, sees, who, saved
):
    class Leaf:
        shape, dtype, is_fully_replicated = (2,), np.dtype("float32"), not split

        def __array__(self, dtype=None, copy=None):
            return np.ones(2, np.float32)

    def save(number):
        own = tmp_path if number == 0 else tmp_path / str(number)
        checkpoints = Checkpoints(own, in_background=False, shared=tmp_path if sees else None)
        if number == who:
            checkpoints.save_alone(1, {"params": Leaf()}, POSITION)

    three(save)
    assert [each.step for each in Checkpoints(tmp_path, in_background=False).all()] == saved


def truncate(saved):
    path = max(files_of(saved), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-100])


def remove_manifest(saved):
    (saved.path / "manifest.json").unlink()


def empty_manifest(saved):
    (saved.path / "manifest.json").write_text("{}")


def nonsense_manifest(saved):
    (saved.path / "manifest.json").write_text("[1, 2]")


def binary_manifest(saved):
    (saved.path / "manifest.json").write_bytes(b"\xff\xfe\x00")


def empty(saved):
    shutil.rmtree(saved.path)
    saved.path.mkdir()


@pytest.mark.parametrize(
    "spoil", [truncate, remove_manifest, empty_manifest, nonsense_manifest, binary_manifest, empty]
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(saved_twice, spoil):
    spoil(saved_twice.all()[0])
    saved, notes = saved_twice.latest_whole()
    assert saved.step == 1
    assert len(notes) == 1
    assert "checkpoint 2 is damaged" in notes[0]
    assert "step-00000002.damaged" in notes[0]
    assert (saved_twice.folder / "step-00000002.damaged").is_dir()
    assert_same_bits(load_part(saved, shapes(make_state(1))), make_state(1))
    saved_twice.save(2, make_state(2), POSITION)  # and the step can be saved again
    assert saved_twice.latest_whole()[0].step == 2


def test_a_step_that_is_damaged_twice_is_kept_twice(saved_twice):
    for _ in range(2):
        truncate(saved_twice.all()[0])
        saved_twice.latest_whole()
        saved_twice.save(2, make_state(2), POSITION)
    assert saved_twice.set_aside() == ["step-00000002.damaged", "step-00000002.damaged-2"]
    assert [saved.step for saved in saved_twice.all()] == [2, 1]


def test_where_none_is_whole_there_is_none(saved_twice):
    for saved in saved_twice.all():
        remove_manifest(saved)
    saved, notes = saved_twice.latest_whole()
    assert saved is None
    assert len(notes) == 2


def test_what_a_killed_save_left_is_removed(saved_twice):
    shutil.copytree(saved_twice.all()[0].path, saved_twice.folder / ".partial-00000003")
    assert saved_twice.latest_whole()[0].step == 2
    assert not list(saved_twice.folder.glob(".partial-*"))


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_refused_and_nothing_is_replaced(saved_twice, value, in_background):
    checkpoints = Checkpoints(saved_twice.folder, in_background=in_background)
    state = make_state(3)
    state["params"]["trainable"]["kernel"] = state["params"]["trainable"]["kernel"].at[-1, -1].set(value)
    with pytest.raises(StoppedError, match=r"step 3: .*kernel.* is not finite.*--learning-rate") as refused:
        checkpoints.save(3, state, POSITION)
    assert refused.value.exit_code == 3
    assert [saved.step for saved in checkpoints.all()] == [2, 1]
    assert damage(checkpoints.all()[0]) is None


def test_a_bfloat16_leaf_is_checked_too(tmp_path):
    state = make_state() | {"optimizer": {"half": jnp.asarray([1.0, np.inf], jnp.bfloat16)}}
    with pytest.raises(StoppedError, match="half"):
        Checkpoints(tmp_path, in_background=False).save(1, state, POSITION)
    assert ml_dtypes.bfloat16  # the dtype the check must see through


def test_the_last_two_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, in_background=False)
    for step in range(1, 6):
        if step == 2:
            checkpoints.mark_best(2, 1.25)
        checkpoints.save(step, make_state(step), POSITION)
    assert [saved.step for saved in checkpoints.all()] == [5, 4, 2]
    assert checkpoints.best() == {"step": 2, "validation_loss": 1.25}
    for damaged in ("garbage", "{}", "[1]", '{"step": 2}'):
        (tmp_path / "best.json").write_text(damaged)
        assert checkpoints.best() is None
        assert "best.json is damaged" in checkpoints.latest_whole()[1][0]
    checkpoints.mark_best(6, 1.0)
    checkpoints.save(6, make_state(6), POSITION)
    assert [saved.step for saved in checkpoints.all()] == [6, 5]


def test_a_state_of_another_shape_is_refused_by_the_leaf(saved_twice):
    with pytest.raises(CheckpointError, match=r"kernel.*\(300, 64\).*\(301, 64\)"):
        load_part(saved_twice.all()[0], shapes(make_state(2, width=301)))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system needs root; the failing write below stands in for it")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def save_and_wait(checkpoints, state):
    checkpoints.save(2, state, POSITION)
    checkpoints.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's own loop, at its failed write
@pytest.mark.parametrize("in_background", [False, True])
def test_a_full_disk_stops_the_run_and_the_last_good_checkpoint_survives(small_disk, in_background):
    checkpoints = Checkpoints(small_disk, in_background=in_background)
    checkpoints.save(1, make_state(1), POSITION)
    checkpoints.wait()
    random = np.random.default_rng(0)
    large = {"kernel": jnp.asarray(random.normal(size=(2**21,)), jnp.float32)}  # 8 MiB that do not compress
    with pytest.raises(StoppedError, match=r"step 2 could not be saved.*disk is full.*run the same command") as stopped:
        save_and_wait(checkpoints, large)
    assert stopped.value.exit_code == 3
    assert not list(small_disk.glob(".partial-*"))  # it would keep the disk full
    saved, notes = checkpoints.latest_whole()
    assert (saved.step, notes) == (1, [])
    assert_same_bits(load_part(saved, shapes(make_state(1))), make_state(1))


def test_what_a_thread_still_writes_after_a_failure_is_removed_too(saved_twice, monkeypatch):
    """It would keep the disk full. Orbax's threads end some time after the error is raised."""
    written = []

    def write_late(_seconds):  # twice, each time after the folder was seen to be gone
        if len(written) < 2 and not (partial := saved_twice.folder / ".partial-00000003").exists():
            partial.mkdir()
            written.append(partial)

    def fail(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "start_writing", fail)
    monkeypatch.setattr(checkpoint.time, "sleep", write_late)
    with pytest.raises(StoppedError, match="disk is full"):
        saved_twice.save(3, make_state(3), POSITION)
    assert len(written) == 2
    assert not list(saved_twice.folder.glob(".partial-*"))


@pytest.mark.parametrize("writer", ["replace_file", "_flush_folder", "start_writing"])
def test_a_write_that_fails_anywhere_leaves_the_last_good_checkpoint(saved_twice, monkeypatch, writer):
    def fail(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, writer, fail)
    with pytest.raises(StoppedError, match="disk is full"):
        saved_twice.save(3, make_state(3), POSITION)
    assert not list(saved_twice.folder.glob(".partial-*"))
    assert [saved.step for saved in saved_twice.all()] == [2, 1]


def test_the_failure_of_a_background_save_is_raised_by_the_next_one(saved_twice, monkeypatch):
    def fail(*_args, **_kwargs):
        raise OSError(errno.EIO, "Input/output error")

    checkpoints = Checkpoints(saved_twice.folder, in_background=True)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replace_file", fail)
        checkpoints.save(3, make_state(3), POSITION)
        with pytest.raises(StoppedError, match=r"step 3 could not be saved.*Input/output error"):
            checkpoints.save(4, make_state(4), POSITION)
    checkpoints.save(5, make_state(5), POSITION)
    checkpoints.wait()
    assert checkpoints.all()[0].step == 5


def changed(state, **parts):
    return state | parts


@pytest.mark.parametrize(
    "other",
    [
        changed(make_state(2), step=jnp.int32(3)),
        changed(make_state(2), key=make_state(3)["key"]),
        changed(make_state(2), params=make_state(3)["params"]),
        changed(make_state(2), optimizer=make_state(3)["optimizer"]),
        changed(make_state(2), carry=jnp.zeros(2)),
    ],
    ids=["step", "key", "params", "optimizer", "carry"],
)
def test_every_part_of_the_state_is_in_the_fingerprint(tmp_path, saved_twice, other):
    checkpoints = Checkpoints(tmp_path / "other", in_background=False)
    checkpoints.save(2, other, loader_position(saved_twice.all()[0]))
    assert fingerprint_of(checkpoints) != fingerprint_of(saved_twice)


def test_the_fingerprint_knows_the_position_in_the_data_and_nothing_of_paths_and_times(tmp_path, saved_twice):
    same, moved = (Checkpoints(tmp_path / name, in_background=False) for name in ("same", "moved"))
    same.save(2, make_state(2), json.loads(json.dumps(loader_position(saved_twice.all()[0]))))
    moved.save(2, make_state(2), POSITION | {"offset": 18})
    assert fingerprint_of(same) == fingerprint_of(saved_twice)
    assert fingerprint_of(moved) != fingerprint_of(saved_twice)


def fingerprint_of(checkpoints):
    saved = checkpoints.all()[0]
    return fingerprint(read_leaves(saved), loader_position(saved))


def with_frozen(state):
    params = state["params"] | {"frozen": {"base": jnp.arange(6, dtype=jnp.uint16), "frozen": {}}}
    return state | {"params": params}


def test_frozen_weights_that_are_read_from_elsewhere_are_not_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, in_background=False, frozen=False)
    state = with_frozen(make_state(1))
    checkpoints.save(1, state, POSITION)
    assert not any("frozen" in path for path, _ in read_leaves(checkpoints.all()[0]))
    step, loaded, position, _ = checkpoints.newest(shapes(state))
    assert (step, position) == (1, POSITION)
    assert_same_bits(loaded, make_state(1))


def test_a_checkpoint_of_before_that_has_frozen_weights_is_loaded_without_them(tmp_path):
    state = with_frozen(make_state(1))
    Checkpoints(tmp_path, in_background=False).save(1, state, POSITION)
    checkpoints = Checkpoints(tmp_path, in_background=False, frozen=False)
    assert_same_bits(checkpoints.newest(shapes(state))[1], make_state(1))
    assert_same_bits(Checkpoints(tmp_path, in_background=False).newest(shapes(state))[1], state)


def test_a_checkpoint_without_frozen_weights_is_refused_where_they_are_wanted(tmp_path):
    Checkpoints(tmp_path, in_background=False, frozen=False).save(1, with_frozen(make_state(1)), POSITION)
    with pytest.raises(CheckpointError, match=r"does not fit the recipe: \['params'\]\['frozen'\]\['base'\] is None"):
        Checkpoints(tmp_path, in_background=False).newest(shapes(with_frozen(make_state(1))))


def test_what_a_save_beside_training_meets_is_raised_where_it_is_waited_for(tmp_path, capfd):
    """Of several processes the store that connects them is gone where another one is: no thread prints that."""
    checkpoints = Checkpoints(tmp_path, in_background=True)

    def complete():
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: Connection reset by peer")

    checkpoints._finish(complete)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Connection reset"):
        checkpoints.wait()
    assert capfd.readouterr().err == ""


def test_a_thread_that_cannot_begin_is_no_wait_without_end(tmp_path, monkeypatch):
    """As Python's own threads are where there is no memory for them: `Thread.start` never returns."""
    monkeypatch.setattr(checkpoint, "BEGIN_SECONDS", 0.01)
    monkeypatch.setattr(checkpoint._thread, "start_new_thread", lambda *_: 1)
    checkpoints = Checkpoints(tmp_path, in_background=True)
    with pytest.raises(MemoryError, match=r"a thread that saves did not begin in 0\.02 s"):
        checkpoints.save(1, make_state(), POSITION)
    checkpoints.wait()
