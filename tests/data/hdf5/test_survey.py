"""An HDF5 file described from samples: figures of small files by hand."""

import h5py
import numpy as np
import pytest

from control_files import write_control
from plimsoll.data.hdf5 import survey
from plimsoll.data.hdf5.survey import describe, is_hdf5


def write(path, attributes=None, **columns):
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            values, options = values if isinstance(values, tuple) else (values, {})
            file.create_dataset(name, data=values, **options)
        file.attrs.update(attributes or {})
    return path


def only(found):
    (row,) = found["datasets"]
    return row


def test_a_small_file_is_described_whole(tmp_path):
    """Five numbers of which two are not finite; chunks of two rows."""
    values = np.array([1.0, np.nan, 0.0, 5.0, np.inf])
    path = write(tmp_path / "x.h5", {"made": "here", "rate": 0.5}, x=(values, {"chunks": (2,)}))
    found = describe(path)
    assert (found["path"], found["bytes"], found["rows"]) == (str(path), path.stat().st_size, 5)
    assert found["attributes"] == {"made": "here", "rate": 0.5}
    assert found["families"] == []
    row = only(found)
    assert row == {
        "name": "x", "shape": [5], "dtype": "float64", "chunks": [2], "compression": None, "stored_bytes": 6 * 8,
        "sampled_rows": 5, "rows_read": 5, "rows_read_not_finite": 2, "mean": 2.0,
        "std": pytest.approx(np.std([1, 0, 5])), "least": 0.0, "largest": 5.0, "zeros": pytest.approx(1 / 3),
    }  # fmt: skip
    (warning,) = found["warnings"]
    assert warning.startswith("x: 2 of 5 rows that were read, of 5, are not finite.")


def test_of_many_chunks_eight_are_read_and_25_rows_of_each_are_sampled(tmp_path):
    many = only(describe(write(tmp_path / "a.h5", x=(np.arange(1000.0), {"chunks": (50,)}))))
    assert (many["rows_read"], many["sampled_rows"]) == (8 * 50, 8 * 25)
    few = only(describe(write(tmp_path / "b.h5", x=(np.arange(150.0), {"chunks": (50,)}))))
    assert (few["rows_read"], few["sampled_rows"]) == (150, 150)
    last = only(describe(write(tmp_path / "c.h5", x=(np.arange(101.0), {"chunks": (100,)}))))
    assert (last["rows_read"], last["sampled_rows"], last["largest"]) == (101, 101, 100.0)
    loose = only(describe(write(tmp_path / "d.h5", x=np.arange(1000.0))))
    assert (loose["chunks"], loose["rows_read"], loose["sampled_rows"]) == (None, 8 * 25, 8 * 25)
    short = only(describe(write(tmp_path / "e.h5", x=np.arange(7.0))))
    assert (short["rows_read"], short["largest"]) == (7, 6.0)


@pytest.mark.parametrize(("values", "sampled"), [
    (np.zeros((0, 3)), False), (np.float64(3.0), False), (np.array([b"a"]), False), (np.array([True]), True),
    (np.array([1], np.uint8), True), (np.array([-1]), True),
], ids=str)  # fmt: skip
def test_rows_of_numbers_are_sampled_and_nothing_else(tmp_path, values, sampled):
    assert ("sampled_rows" in only(describe(write(tmp_path / "x.h5", x=values)))) == sampled


@pytest.mark.parametrize(("most", "sampled"), [(2 * 8 * 3, True), (2 * 8 * 3 - 1, False)])
def test_chunks_larger_than_a_read_are_not_sampled(tmp_path, monkeypatch, most, sampled):
    assert survey.LARGEST_READ == 64 * 2**20
    monkeypatch.setattr(survey, "LARGEST_READ", most)
    found = describe(write(tmp_path / "x.h5", x=(np.ones((4, 3)), {"chunks": (2, 3)})))
    assert ("sampled_rows" in only(found)) == sampled


def test_forty_attributes_are_shown_and_long_ones_by_their_shape(tmp_path):
    attributes = {f"a{n:02d}": n for n in range(41)}
    found = describe(write(tmp_path / "x.h5", attributes, x=np.zeros(3)))["attributes"]
    assert found == {name: value for name, value in attributes.items() if value < 40}
    values = {
        "short": np.arange(16), "long": np.arange(17), "words": np.array([b"x"] * 20), "nan": np.nan, "flag": True
    }  # fmt: skip
    plain = describe(write(tmp_path / "y.h5", values, x=np.zeros(3)))["attributes"]
    assert plain == {
        "short": list(range(16)), "long": "int64 of shape (17,)", "words": ["b'x'"] * 16, "nan": "nan", "flag": True
    }  # fmt: skip


def test_figures_of_a_family_by_hand(tmp_path):
    """Two rows of Tank and one of Cart: norms of the last states 5, 10 and 0, controls 3, 4 and 1, one NaN. One of
    Wall, which has no control."""
    inputs = np.zeros((4, 2, 2), np.float32)
    inputs[0, -1], inputs[1, -1], inputs[:, 0] = (3, 4), (6, 8), 99
    controls = np.array([[3, 0], [4, 0], [1, np.nan], [0, 0]], np.float32)
    masks = np.array([[1, 0], [1, 0], [1, 1], [0, 0]], np.float32)
    names = np.array(["Tank", "Tank", "Cart", "Wall"], "S50")
    path = write(
        tmp_path / "w.h5", input_sequences=(inputs, {"chunks": (2, 2, 2)}), controls=controls, control_masks=masks,
        system_ids=names,
    )  # fmt: skip
    cart, tank, wall = describe(path)["families"]
    assert tank == {
        "name": "Tank", "sampled_rows": 2, "mean_norm": 7.5, "inputs": 1.0, "control_rms": pytest.approx(12.5**0.5),
        "rows_not_finite": 0,
    }  # fmt: skip
    assert (cart["name"], cart["sampled_rows"], cart["mean_norm"], cart["inputs"]) == ("Cart", 1, 0.0, 2.0)
    assert cart["rows_not_finite"] == 1
    assert (wall["name"], wall["control_rms"]) == ("Wall", None)


def test_families_are_sampled_in_eight_chunks_from_end_to_end(tmp_path):
    """Of 21 chunks of one row, the first and the last among them; a family that is only between is not seen."""
    names = np.array(["A", *["B"] * 19, "C"], "S50")
    path = write(
        tmp_path / "w.h5", input_sequences=(np.zeros((21, 4, 2)), {"chunks": (1, 4, 2)}), controls=np.zeros((21, 2)),
        control_masks=np.ones((21, 2)), system_ids=names,
    )  # fmt: skip
    assert [(one["name"], one["sampled_rows"]) for one in describe(path)["families"]] == [("A", 1), ("B", 6), ("C", 1)]


def test_without_one_of_its_columns_a_file_has_no_families(tmp_path):
    assert describe(write_control(tmp_path / "a.h5"))["families"]
    assert describe(write_control(tmp_path / "b.h5", control_masks=None))["families"] == []


def test_a_file_is_hdf5_by_its_content_or_by_its_name(tmp_path):
    named, plain = tmp_path / "text.HDF", tmp_path / "text"
    named.write_text("x")
    plain.write_text("x")
    assert is_hdf5(named)
    assert not is_hdf5(plain)
    assert is_hdf5(write(tmp_path / "no-suffix", x=np.zeros(3)))
    (tmp_path / "folder.h5").mkdir()
    assert not is_hdf5(tmp_path / "folder.h5")
