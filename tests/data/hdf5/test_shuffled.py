"""Rows of HDF5 in a mixed order: each once an epoch, none held out, bad ones said, and every position found again."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_files import FAMILIES, places, write_control
from hypotheses import examples
from making import made
from plimsoll.data.hdf5.rows import Hdf5Rows
from plimsoll.data.hdf5.shuffled import MixedChunks
from plimsoll.data.hdf5.survey import describe, is_hdf5
from plimsoll.errors import DataError
from plimsoll.recipes.control.rows import ControlRows


def advice(path):
    recipe = made("control", data=str(path))
    return recipe.data.memory(None, recipe.reading, prefetch=0).advice


def epoch_of(rows, *, batch_size=50, mix=3, count=None, **how):
    loader = rows.loader(batch_size=batch_size, seed=1, mix=mix, skip_bad=False, prefetch=0, **how)
    return [next(loader) for _ in range((count or rows.training_rows) // batch_size)]


@pytest.fixture
def control(tmp_path):
    return write_control(tmp_path / "w.h5")


@settings(max_examples=examples(25))
@given(st.integers(1, 130), st.integers(1, 7), st.integers(30, 300), st.integers(1, 70))
def test_every_row_comes_once_an_epoch_whatever_the_sizes(tmp_path_factory, batch_size, mix, rows, chunk):
    path = tmp_path_factory.mktemp("rows") / "w.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(rows), chunks=(min(chunk, rows),))
    batches = iter(MixedChunks(Hdf5Rows(path, {"x": "x"}), batch_size=batch_size, seed=3, mix=mix))
    drawn = np.concatenate([next(batches)["x"] for _ in range(-(-3 * rows // batch_size))])
    for epoch in range(3):
        assert sorted(drawn[epoch * rows : (epoch + 1) * rows].tolist()) == list(range(rows))


def test_training_and_validation_share_no_trajectory(control):
    rows = ControlRows(control, split="variant")
    trained = np.concatenate([places(batch) for batch in epoch_of(rows, count=2 * len(rows))])
    held_out = np.concatenate(
        [places(batch)[batch["masks"].any(axis=1)] for batch in rows.validation(most=10_000, batch_size=64)]
    )
    assert len(held_out) > 30
    assert not {*(trained // 4)} & {*(held_out // 4)}
    assert len({*trained} | {*held_out}) == len(rows)


def test_validation_batches_are_full_and_filled_with_rows_that_count_nothing(control):
    batches = list(ControlRows(control, split="variant").validation(most=10_000, batch_size=64))
    assert {len(batch["family"]) for batch in batches} == {64}
    assert sum(int(batch["masks"].any(axis=1).sum()) for batch in batches) == 100
    few = list(ControlRows(control, split="variant").validation(most=20, batch_size=16))
    assert sum(int(batch["masks"].any(axis=1).sum()) for batch in few) <= 64


def test_controls_come_in_units_of_their_familys_spread(control):
    rows = ControlRows(control, split="none")
    batch = next(rows.loader(batch_size=50, seed=1, mix=1, skip_bad=False, prefetch=0))
    assert np.allclose(batch["controls"], batch["masks"] * batch["inputs"][:, -1, :6], atol=1e-6)
    assert rows.families == sorted(FAMILIES)
    assert batch["masks"].sum(axis=1).astype(int).tolist() == (batch["family"] + 1).tolist()


def test_a_damaged_chunk_ends_the_run_in_a_sentence(tmp_path):
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", data=np.arange(1000.0), chunks=(100,), fletcher32=True)
        at = made.id.get_chunk_info(3).byte_offset
    whole = path.read_bytes()
    path.write_bytes(whole[: at + 40] + bytes([whole[at + 40] ^ 1]) + whole[at + 41 :])
    with pytest.raises(DataError, match=r"rows 300 to 400 of .* cannot be read .*: the file or its disk is damaged"):
        Hdf5Rows(path, {"x": "x"}).read(300, 400)


@pytest.mark.parametrize("name", ["none", "empty", "text", "folder"])
def test_what_is_called_hdf5_and_is_none_is_refused_in_a_sentence(tmp_path, name):
    path = tmp_path / f"{name}.h5"
    if name == "folder":
        path.mkdir()
    elif name != "none":
        path.write_text("" if name == "empty" else "no HDF5")
    said = {"none": "there is no file", "empty": "cannot be opened", "text": "it is no HDF5 file"}
    with pytest.raises(DataError, match=said.get(name, "is a folder: name the HDF5 file in it")):
        Hdf5Rows(path, {"x": "x"})
    assert is_hdf5(path) == (name in ("empty", "text"))  # so `inspect` does not read it as text


def test_a_position_of_another_file_is_refused(control, tmp_path):
    loader = ControlRows(control, split="variant").loader(batch_size=9, seed=1, mix=3, skip_bad=False, prefetch=0)
    next(loader)
    state = loader.state()
    for other, how in ((write_control(tmp_path / "b.h5", rows=700), {}), (control, {"mix": 4})):
        there = ControlRows(other, split="variant").loader(
            **{"batch_size": 9, "seed": 1, "mix": 3, "skip_bad": False, "prefetch": 0, **how}
        )
        with pytest.raises(DataError, match=r"the data position was saved for rows \d+, .*mix_chunks 3, and .*h5 has"):
            there.restore(state)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"controls": None}, "no dataset 'controls': it has control_masks, input_sequences"),
        ({"system_ids": np.zeros(10, "S50")}, "unequal numbers of rows"),
        ({"input_sequences": np.zeros((600, 19), np.float32)}, r"expected inputs \(window, features\)"),
        ({"control_masks": np.zeros((600, 5), np.float32)}, "controls and masks of one equal length"),
        ({"system_ids": np.array([b"Unheard"] * 600, "S50")}, "rows of 'Unheard', which is not among its families"),
    ],
)
def test_what_is_missing_or_misshapen_is_named(tmp_path, changes, said):
    path = write_control(tmp_path / "w.h5", **changes)
    with pytest.raises(DataError, match=said):
        epoch_of(ControlRows(path, split="variant"))


def test_a_file_without_the_border_of_its_variants_may_be_split_otherwise(control):
    with h5py.File(control, "r+") as file:
        del file.attrs["train_rows"]
    with pytest.raises(DataError, match="set it, or use --split none"):
        epoch_of(ControlRows(control, split="variant"))
    assert ControlRows(control, split="none").training_rows == 600


def test_huge_packed_chunks_are_warned_of_with_what_they_cost(tmp_path):
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        zeros = np.zeros((60_000, 64), np.float32)
        file.create_dataset("x", data=zeros, chunks=(60_000, 64), compression="gzip")
    assert any("60,000 rows, 14.6 MiB (gzip)" in warning for warning in describe(path)["warnings"])
    assert "docs/control.md" in advice(write_control(tmp_path / "w.h5"))
    assert "docs/control.md" in describe(path)["warnings"][0]
