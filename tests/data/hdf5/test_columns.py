"""HDF5 as the data of a recipe of one's own: every row once, like arrays in memory, and refused where it cannot be."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.hdf5.columns import Hdf5
from plimsoll.errors import DataError, PlimsollError
from plimsoll.types import COUNTED


def written(path, rows=100, chunk=16, **changes):
    columns = {"x": np.arange(rows * 2, dtype=np.float64).reshape(rows, 2), "y": np.arange(rows), **changes}
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file.create_dataset(f"in/{name}", data=values, chunks=(min(chunk, rows), *values.shape[1:]))
    return path


COLUMNS = {"x": "in/x", "y": "in/y"}


@settings(max_examples=examples(25))
@given(st.integers(1, 80), st.integers(1, 20), st.integers(1, 30), st.integers(0, 79), st.integers(0, 79))
def test_an_evaluation_counts_every_row_once(tmp_path_factory, rows, chunk, batch_size, begin, end):
    path = written(tmp_path_factory.mktemp("rows") / "w.h5", rows, chunk)
    begin, end = sorted((begin % rows, end % rows))
    batches = list(Hdf5(path, COLUMNS, rows=(begin, end + 1)).counted(batch_size))
    assert {len(batch["y"]) for batch in batches} == {batch_size}
    assert [*np.concatenate([batch["y"][batch[COUNTED]] for batch in batches])] == list(range(begin, end + 1))


def test_an_epoch_has_every_row_of_its_part(tmp_path):
    examples = Hdf5(written(tmp_path / "w.h5"), COLUMNS, rows=(None, -20), mix=2)
    loader = examples.loader(batch_size=10, seed=0, shuffle=True, prefetch=0)
    batches = [next(loader) for _ in range(8)]
    assert len(examples) == 80
    assert sorted(np.concatenate([batch["y"] for batch in batches])) == list(range(80))
    assert examples.spec == {"x": ((2,), "float32"), "y": ((), "int32")}  # in 32 bits, as JAX has numbers
    assert {name: (values.shape[1:], values.dtype.name) for name, values in batches[0].items()} == examples.spec
    unshuffled = examples.loader(batch_size=80, seed=0, shuffle=False, prefetch=0)
    assert [*next(unshuffled)["y"]] == list(range(80))


def test_what_it_holds_is_the_chunks_that_are_mixed(tmp_path):
    few, many = (written(tmp_path / f"{rows}.h5", rows) for rows in (100, 10_000))
    held = [Hdf5(few, COLUMNS, mix=mix).held_bytes(training=True) for mix in (1, 3)]
    assert held[1] - held[0] == 2 * 16 * 12
    assert Hdf5(many, COLUMNS, mix=3).held_bytes(training=True) == held[1]


def test_rows_that_are_not_finite_end_it_or_are_left_out(tmp_path):
    x = np.zeros((100, 2))
    x[[7, 70]] = np.nan
    path = written(tmp_path / "w.h5", x=x)
    with pytest.raises(DataError, match=r"not finite: 7, 1 of rows 0 to 16.*skip_bad=True"):
        list(Hdf5(path, COLUMNS).counted(10))
    with pytest.raises(DataError, match="not finite: 70"):
        next(Hdf5(path, COLUMNS, rows=(64, None)).loader(batch_size=30, seed=0, shuffle=True, prefetch=0))
    batches = list(Hdf5(path, COLUMNS, skip_bad=True).counted(10))
    assert sum(int(batch[COUNTED].sum()) for batch in batches) == 98
    loader = Hdf5(path, COLUMNS, skip_bad=True).loader(batch_size=49, seed=0, shuffle=True, prefetch=2)
    next(loader), next(loader), next(loader)
    assert loader.state()["skipped"] == 2
    loader.close()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"columns": {"x": "x"}}, "has no dataset 'x': it has in/x, in/y"),
        ({"columns": {"x": "in/x", COUNTED: "in/y"}}, "is taken"),
        ({"columns": ["x"]}, "like {"),
        ({"rows": (90, 20)}, "has 100 rows, and rows=(90, 20)"),
        ({"rows": (-101, None)}, "rows=(-101, None)"),
        ({"mix": 0}, "mix"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, how, said):
    path = written(tmp_path / "w.h5")
    with pytest.raises(PlimsollError) as refused:
        Hdf5(path, **{"columns": COLUMNS, **how}).loader(batch_size=1, seed=0, shuffle=True, prefetch=0)
    assert said in str(refused.value)
