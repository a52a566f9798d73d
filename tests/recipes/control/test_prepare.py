"""Windows of control: as many as asked for, each once, the same from the same seed."""

import os
import re
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import workers_here
from hypotheses import examples
from plimsoll.cli.main import main
from plimsoll.errors import DataError, PlimsollError
from plimsoll.recipes.control.prepare import code, prepare
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.control.rows import ControlRows
from plimsoll.recipes.control.systems import FAMILIES

SMALL = ControlSet(samples=6_000, horizon=4.0, variants=4, held_out=0.25)
"""200 steps: 8 windows of a trajectory."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("control") / "windows.h5"
    return path, prepare(SMALL, path)


def column(path, name):
    with h5py.File(path) as file:
        return file[name][()]


def test_the_published_set_by_arithmetic():
    assert [code(1, 4), code(6, 12)] == [[0, 0, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 0, 0]]  # both numbers in binary
    assert (ControlSet(samples=1).windows_each, ControlSet(samples=1).length) == (118, 2500)
    assert ControlSet(samples=103_250_000).variants_used == 50
    assert ControlSet(samples=20_001, held_out=0.0).train_rows == 20_001
    assert ControlSet(samples=3_000, variants=1).train_rows == 3_000
    assert [ControlSet(samples=few).train_rows for few in (1, 2)] == [1, 1]
    assert [ControlSet(samples=few).held_out_variants for few in (1, 2)] == [0, 1]


def test_the_file_has_what_was_asked_for(made):
    path, answer = made
    assert answer["examples"] == 6_000
    assert {"seconds", "examples_per_second", "bytes"} <= answer.keys()
    assert answer["bytes"] == path.stat().st_size
    rows = {"input_sequences": (32, 19), "controls": (6,), "control_masks": (6,)}
    rows |= {"system_ids": (), "trajectory": (), "variant": ()}
    with h5py.File(path) as file:
        assert {name: file[name].shape for name in rows} == {name: (6_000, *rest) for name, rest in rows.items()}
        assert file["input_sequences"].chunks == (512, 32, 19)
        assert file["input_sequences"].compression == "lzf"
        assert set(file["normalization"]) == set(FAMILIES)
        assert dict(file["normalization/CartPole"].attrs) == {"n_states": 4, "n_inputs": 1}
        told = dict(file.attrs)
    assert (told["sequence_length"], told["max_state_dim"], told["max_input_dim"]) == (32, 12, 6)
    assert told["total_sequences"] == 6_000
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


def test_windows_follow_one_another_as_the_system_moves_and_none_comes_twice(made):
    """Two windows of a trajectory overlap by 11 states: they are the same numbers."""
    path, _ = made
    trajectory, inputs = column(path, "trajectory"), column(path, "input_sequences")
    assert len(np.unique(inputs[:, :, :12].reshape(len(inputs), -1), axis=0)) == len(inputs)
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


def test_the_same_seed_makes_the_same_rows_and_another_does_not(made, tmp_path):
    prepare(SMALL, tmp_path / "again.h5")
    prepare(replace(SMALL, seed=7), tmp_path / "other.h5")
    for name in ("input_sequences", "controls", "system_ids", "trajectory", "variant"):
        np.testing.assert_array_equal(column(tmp_path / "again.h5", name), column(made[0], name))
    assert not np.array_equal(column(made[0], "controls"), column(tmp_path / "other.h5", "controls"))


def test_a_set_that_is_finished_is_left_alone_and_one_of_other_options_is_refused(made, capfd):
    path, answer = made
    before = path.stat().st_mtime_ns
    again = prepare(SMALL, path)
    assert (again["finished_before"], answer["finished_before"]) == (True, False)
    assert (again["examples"], again["bytes"]) == (6_000, answer["bytes"])
    assert path.stat().st_mtime_ns == before
    words = ["--samples", "6k", "--horizon", "4", "--variants", "4", "--held-out", "0.25", "--seed", "3"]
    with workers_here():
        assert main(["prepare", "control", *words, "--out", str(path)]) == 2
    assert "windows.h5 is there already, and seed was 42 and is 3" in capfd.readouterr().err


def test_a_set_that_the_disk_has_no_room_for_is_refused_with_what_it_has(tmp_path):
    with pytest.raises(DataError, match=r"windows take up to .* are free .* ask for at most [\d,]+ --samples"):
        prepare(ControlSet(samples=10**12), tmp_path / "w.h5")
    assert not os.listdir(tmp_path)


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
        ({"samples": 0}, "--samples must be 1 or more"),
        ({"window": 3000}, "has no window of 3000"),
        ({"uncertainty": 1.5}, "--uncertainty must be 0 or more and below 1, got 1.5"),
        ({"noise": float("nan")}, "--noise must be 0 or more and finite, got nan"),
        ({"seed": 10**20}, "--seed must be 0 or more and at most"),
        ({"samples": 2_000, "variants": 200}, "--variants 200 do not all fit in 2,000 windows"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, said):
    with pytest.raises(PlimsollError, match=re.escape(said)):
        ControlSet(**{"samples": 1000, **options})
