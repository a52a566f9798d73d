"""Windows of control: as many as asked for, each once, the same from the same seed, whole after any kill."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.cli.main import main
from plimsoll.data.hdf5.rows import Hdf5Rows
from plimsoll.data.hdf5.writer import Column, GrowingFile, reopened
from plimsoll.errors import DataError, StoppedError
from plimsoll.processes.environment import for_processes
from plimsoll.recipes.control.prepare import STATES_OF_CODE, code, prepare
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.rows import ControlRows
from plimsoll.recipes.control.systems import FAMILIES
from plimsoll.recipes.control.window_packing import packed_windows

SMALL = ["--samples", "6k", "--horizon", "4", "--variants", "4", "--held-out", "0.25"]
"""200 steps: 8 windows of a trajectory."""


def made_by_the_command(path, *words):
    """In a process of its own: other tests of this one may have told the compiler to optimise less."""
    command = [sys.executable, "-m", "plimsoll.cli.main", "prepare", "control", *SMALL, *words, "--out", str(path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("control") / "windows.h5"
    return path, made_by_the_command(path)


def column(path, name):
    with h5py.File(path) as file:
        return file[name][()]


def test_the_code_is_both_numbers_in_binary():
    assert code(1, 4) == [0, 0, 1, 0, 1, 0, 0]
    assert code(6, 12) == [1, 1, 0, 1, 1, 0, 0]


def test_a_trajectory_of_the_published_set_has_118_windows():
    assert ControlSet(samples=1).windows_each == 118
    assert ControlSet(samples=1).length == 2500
    assert ControlSet(samples=103_250_000).variants_used == 50


def test_the_file_has_what_was_asked_for(made):
    path, answer = made
    assert answer["examples"] == 6_000
    assert {"seconds", "examples_per_second", "bytes"} <= answer.keys()
    assert answer["bytes"] == path.stat().st_size
    with h5py.File(path) as file:
        assert {
            name: file[name].shape for name in file if isinstance(file[name], h5py.Dataset) and len(file[name]) == 6_000
        } == {
            "input_sequences": (6_000, 32, 19),
            "controls": (6_000, 6),
            "control_masks": (6_000, 6),
            "system_ids": (6_000,),
            "trajectory": (6_000,),
            "variant": (6_000,),
        }
        assert file["input_sequences"].chunks == (512, 32, 19)
        assert file["input_sequences"].compression == "lzf"
        assert set(file["normalization"]) == set(FAMILIES)
        assert dict(file["normalization/CartPole"].attrs) == {"n_states": 4, "n_inputs": 1}
        told = dict(file.attrs)
    assert (told["sequence_length"], told["max_state_dim"], told["max_input_dim"]) == (32, 12, 6)
    assert (told["total_sequences"], told["rows_written"]) == (6_000, 6_000)
    assert told["total_trajectories_generated"] >= len(np.unique(column(path, "trajectory"))) > 500


def test_rows_carry_their_systems_code_and_mask(made):
    path, _ = made
    names = [name.decode() for name in column(path, "system_ids")]
    inputs, masks, controls = (column(path, name) for name in ("input_sequences", "control_masks", "controls"))
    assert set(names) == set(FAMILIES)
    for row, name in enumerate(names):
        family = FAMILIES[name]
        assert masks[row].tolist() == [1] * family.inputs + [0] * (6 - family.inputs)
        assert not inputs[row, :, family.states : 12].any()
        assert not controls[row, family.inputs :].any()
    assert np.array_equal(
        inputs[:, :, 12:],
        np.array([code(FAMILIES[name].inputs, FAMILIES[name].states) for name in names])[:, None].repeat(32, 1),
    )
    assert np.isfinite(inputs).all()
    assert 0.2 < np.abs(inputs[..., :12]).max() < 3  # in units of the pilots' largest


def test_the_control_is_that_of_the_gain_at_the_windows_last_state(made):
    from plimsoll.recipes.control.lqr import gain

    path, _ = made
    names, inputs, controls = (column(path, name) for name in ("system_ids", "input_sequences", "controls"))
    with h5py.File(path) as file:
        for name in ("QuadrotorHover", "SegwayRobot", "DoubleIntegrator"):
            family, group = FAMILIES[name], file[f"normalization/{name}"]
            mine = names == name.encode()
            states = inputs[mine, -1, : family.states] * group["state_max"][()]
            expected = -states @ gain(family).T
            found = controls[mine, : family.inputs] * group["control_max"][()]
            assert np.allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_windows_follow_one_another_as_the_system_moves(made):
    """Two windows of a trajectory overlap by 11 states: they are the same numbers."""
    path, _ = made
    trajectory, inputs = column(path, "trajectory"), column(path, "input_sequences")
    found = 0
    for number in np.unique(trajectory)[:40]:
        rows = inputs[trajectory == number, :, :12]
        for one in rows:
            found += any(np.array_equal(one[21:], other[:11]) for other in rows)
    assert found > 40


def test_held_out_variants_are_the_last_rows_and_share_no_trajectory(made):
    path, answer = made
    border = answer["train_examples"]
    variant, trajectory = column(path, "variant"), column(path, "trajectory")
    assert border % 512 == 0
    assert {*variant[:border]} == {0, 1, 2}
    assert {*variant[border:]} == {3}
    assert not {*trajectory[:border]} & {*trajectory[border:]}
    assert ControlRows(path, split="variant").training_rows == border


def test_no_window_comes_twice(made):
    inputs = column(made[0], "input_sequences")
    assert len(np.unique(inputs[:, :, :12].reshape(len(inputs), -1), axis=0)) == len(inputs)


def same(one, other):
    with h5py.File(one) as left, h5py.File(other) as right:
        names = [name for name in left if isinstance(left[name], h5py.Dataset)]
        return all(np.array_equal(left[name][()], right[name][()]) for name in names)


def test_the_same_seed_makes_the_same_file_and_another_does_not(made, tmp_path):
    made_by_the_command(tmp_path / "again.h5")
    made_by_the_command(tmp_path / "other.h5", "--seed", "7")
    assert same(made[0], tmp_path / "again.h5")
    assert not np.array_equal(column(made[0], "controls"), column(tmp_path / "other.h5", "controls"))


SLOWLY = """
import sys, time
from pathlib import Path
from plimsoll.recipes.control import prepare as control
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.data.hdf5.writer import GrowingFile
control.MARK_SECONDS = 0
append = GrowingFile.append
def slow(self, rows):
    append(self, rows)
    print(self._at, flush=True)
    time.sleep(0.02)
GrowingFile.append = slow
made = ControlSet(samples=6_000, horizon=4.0, variants=4, held_out=0.25)
control.prepare(made, Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_set_whose_making_is_killed_again_and_again_is_the_same_set(made, tmp_path):
    out, kills = tmp_path / "killed.h5", 0
    for after in (1, 3, 2, 4, None):
        command = [sys.executable, "-c", SLOWLY, str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=for_processes("cpu"))
        for seen, _line in enumerate(process.stdout, 1):
            if seen == after:
                time.sleep(0.005 * after)  # somewhere in the next chunk
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        process.stdout.close()
        process.wait()
    assert kills == 4
    assert process.returncode == 0
    assert same(made[0], out)
    assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob("*.lock"))


def test_other_options_do_not_continue_what_was_begun(tmp_path):
    columns = {"x": Column((), "int32")}
    how = {"rows": 10, "chunk_rows": 5, "compression": None}
    with GrowingFile(tmp_path / "a.h5", columns, made_with={"seed": 1}, **how) as file:
        file.begin()
        file.append({"x": np.arange(5)})
        file.mark()
    with pytest.raises(DataError, match=r"begun with other options, seed 1 there and 2 here: use the same ones"):
        GrowingFile(tmp_path / "a.h5", columns, made_with={"seed": 2}, **how).__enter__()
    with GrowingFile(tmp_path / "a.h5", columns, made_with={"seed": 1}, **how) as file:
        assert file.done == 5
        file.begin()
        file.append({"x": np.arange(5, 10)})
        file.finish()
    assert column(tmp_path / "a.h5", "x").tolist() == list(range(10))
    with pytest.raises(DataError, match="is there already"):
        GrowingFile(tmp_path / "a.h5", columns, made_with={"seed": 1}, **how).__enter__()


@pytest.mark.parametrize("noisy", [False, True])
def test_chunks_packed_in_threads_are_those_that_h5py_would_have_written(tmp_path, noisy):
    """What cannot be packed is stored as it is, and both are read back by h5py alone."""
    columns, random = {"x": Column((64, 19), "float32")}, np.random.default_rng(0)
    values = random.standard_normal((650, 64, 19)).astype(np.float32)
    values = values if noisy else np.repeat(values[:, :, :1], 19, axis=2)
    with GrowingFile(tmp_path / "a.h5", columns, rows=650, chunk_rows=100, compression="lzf", made_with={}) as file:
        assert file.threads, "h5py's library has no lzf_compress any more: see data/hdf5/compression.py"
        file.begin()
        for at in range(0, 650, 100):
            file.append({"x": values[at : at + 100]})
        file.finish()
    assert np.array_equal(column(tmp_path / "a.h5", "x"), values)
    with h5py.File(tmp_path / "a.h5") as file, h5py.File(tmp_path / "b.h5", "w") as plain:
        theirs = plain.create_dataset("x", data=values, chunks=(100, 64, 19), compression="lzf", fletcher32=True)
        assert file["x"].id.get_storage_size() == theirs.id.get_storage_size()


def test_a_set_that_is_finished_is_left_alone_and_that_is_no_error(made, capfd):
    path, answer = made
    before = path.stat().st_mtime_ns
    again = made_by_the_command(path)
    assert (again["finished_before"], answer["finished_before"]) == (True, False)
    assert (again["examples"], again["bytes"]) == (6_000, answer["bytes"])
    assert path.stat().st_mtime_ns == before
    words = [*SMALL, "--seed", "3", "--out", str(path)]
    assert main(["prepare", "control", *words]) == 2
    assert "made with other options, seed 42 there and 3 here: name another --out" in capfd.readouterr().err


@pytest.mark.parametrize("sizes", [(1, 2, 5, 8, 10, 11, 12), (4,), (12,)])
def test_windows_packed_by_what_is_known_of_them_are_read_back_by_h5py(tmp_path, sizes):
    random = np.random.default_rng(0)
    windows = np.zeros((60, 9, 19), np.float32)
    for row, size in enumerate(random.choice(sizes, 60).tolist()):
        windows[row, :, :size] = random.standard_normal((9, size))
        windows[row, :, 12:] = code(3, size)
    packed = packed_windows(windows, states=12, code=STATES_OF_CODE)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", windows.shape, "float32", chunks=windows.shape, compression="lzf")
        made.id.write_direct_chunk((0, 0, 0), packed)
    assert np.array_equal(column(tmp_path / "a.h5", "x"), windows)
    assert len(packed) < windows.nbytes * (4 * np.mean(sizes) + 12) / 76 + 60 * 50


@pytest.mark.parametrize("place", [(5, 3, 11), (5, 3, 15), (5, 0, 15)])
def test_windows_that_are_not_built_so_are_packed_as_anything_else(place):
    windows = np.zeros((60, 9, 19), np.float32)
    windows[:, :, :4], windows[:, :, 12:] = 1.5, code(1, 4)
    assert packed_windows(windows, states=12, code=STATES_OF_CODE) is not None
    windows[place] += 1
    assert packed_windows(windows, states=12, code=STATES_OF_CODE) is None


def test_a_damaged_chunk_of_the_set_is_noticed(made, tmp_path):
    path = tmp_path / "damaged.h5"
    with h5py.File(made[0]) as file:
        at = file["input_sequences"].id.get_chunk_info(2).byte_offset
    whole = made[0].read_bytes()
    path.write_bytes(whole[: at + 9] + bytes([whole[at + 9] ^ 1]) + whole[at + 10 :])
    with pytest.raises(DataError, match=r"rows 1,024 to 1,536 of .*damaged.h5 cannot be read"):
        Hdf5Rows(path, {"x": "input_sequences"}).read(1024, 1536)


def test_two_processes_do_not_write_one_file(tmp_path):
    columns = {"x": Column((), "int32")}
    how = {"rows": 10, "chunk_rows": 5, "compression": None, "made_with": {}}
    with (
        GrowingFile(tmp_path / "a.h5", columns, **how),
        pytest.raises(DataError, match="another process is writing"),
    ):
        GrowingFile(tmp_path / "a.h5", columns, **how).__enter__()


KILLED = """
import os, sys, h5py
file = h5py.File(sys.argv[1], "r+", libver="latest")
file.swmr_mode = True
file["x"][:] = [7, 8, 9]
file.flush()
os._exit(9)
"""


def test_the_note_of_a_killed_writer_is_taken_back_and_damage_is_not_mended(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.arange(3)
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    with pytest.raises(OSError, match="already open for write"):
        h5py.File(path, "r+")
    reopened(path).close()
    assert column(path, "x").tolist() == [7, 8, 9]
    reopened(path).close()  # nothing to take back
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(OSError, match="checksum"):
        reopened(path)
    path.rename(tmp_path / "a.h5.partial")
    with pytest.raises(DataError, match=r"a.h5.partial cannot be continued .*: remove it, and begin anew"):
        GrowingFile(path, {"x": Column((), "int64")}, rows=3, made_with={}, chunk_rows=3, compression=None).__enter__()


def test_a_disk_that_fills_up_meanwhile_loses_nothing(tmp_path, monkeypatch):
    path, x = tmp_path / "w.h5", np.arange(1000, dtype=np.float64)

    def grown():
        with GrowingFile(
            path, {"x": Column((), "f8")}, rows=1000, made_with={}, chunk_rows=100, compression="lzf"
        ) as file:
            begun_at = file.done
            file.begin()
            for at in range(begun_at, 1000, 100):
                file.append({"x": x[at : at + 100]})
            file.finish()
        return begun_at

    with monkeypatch.context() as patch:
        left = iter([2**40, 2**40, 2**20, 2**20])
        patch.setattr("plimsoll.data.hdf5.writer.free_bytes", lambda path: next(left))
        with pytest.raises(StoppedError, match=r"disk is full \(1.0 MiB free .*200 of 1,000 rows are good"):
            grown()
    assert grown() == 200
    assert np.array_equal(column(path, "x"), x)


def test_a_set_that_the_disk_has_no_room_for_is_refused_with_what_it_has(tmp_path):
    with pytest.raises(DataError, match=r"windows take up to .* are free .* ask for at most [\d,]+ --samples"):
        prepare(ControlSet(samples=10**12), tmp_path / "w.h5")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 0}, "--samples must be 1 or more"),
        ({"window": 3000}, "has no window of 3000"),
        ({"uncertainty": 1.5}, "shares from 0 to below 1"),
        ({"compression": "zip"}, "not one of lzf, gzip, none"),
    ],
)
def test_sets_that_cannot_be_made_are_refused(changes, said):
    with pytest.raises(DataError, match=said):
        ControlSet(**{"samples": 1000, **changes})


@settings(max_examples=examples(60))
@given(samples=st.integers(5_000, 600_000), held_out=st.sampled_from([0.0, 0.15, 0.5]))
def test_every_variant_is_seen(samples, held_out):
    made = ControlSet(samples=samples, held_out=held_out)
    blocks = list(made.blocks())
    assert {variant for block in blocks for variant in block.variants} == set(range(made.variants_used))
    assert [block.first for block in blocks[1:]] == [block.end for block in blocks[:-1]]
    assert (blocks[0].first, blocks[-1].end) == (0, samples)
    training = made.variants_used - made.held_out_variants
    assert all((max(block.variants) < training) == (block.end <= made.train_rows) for block in blocks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"noise": float("nan")}, "--noise must be 0 or more and finite, got nan"),
        ({"seed": -1}, "--seed must be a whole number from 0 to"),
        ({"seed": 10**20}, "--seed must be a whole number from 0 to"),
        ({"samples": 2_000, "variants": 200}, "--variants 200 are not all to be seen in 2,000 windows"),
        ({"samples": 10**9, "variants": 2000}, "--variants must be from 1 to 1,000, got 2,000"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, said):
    with pytest.raises(DataError, match=re.escape(said)):
        ControlSet(**options)


def test_nothing_need_be_held_out():
    assert ControlSet(samples=20_001, held_out=0.0).train_rows == 20_001
    assert ControlSet(samples=3_000, variants=1).train_rows == 3_000
    assert (ControlSet(samples=1).train_rows, ControlSet(samples=1).held_out_variants) == (1, 0)
    assert (ControlSet(samples=2).train_rows, ControlSet(samples=2).held_out_variants) == (1, 1)
