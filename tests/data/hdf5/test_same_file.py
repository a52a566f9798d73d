"""A run goes on with the file it began with, or a copy of it; another one in its place is refused."""

import dataclasses
import json
import os
import shutil

import h5py
import pytest

from control_files import write_control
from plimsoll.api.train import prepare_data
from plimsoll.data.hdf5.columns import Hdf5
from plimsoll.data.hdf5.rows import Hdf5Rows
from plimsoll.errors import DataError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.control.recipe import Control

COLUMNS = {"x": "input_sequences", "y": "controls"}


@pytest.fixture
def path(tmp_path):
    return write_control(tmp_path / "w.h5")


def told(path, then):
    return Hdf5Rows(path, COLUMNS).require_same(then)


@pytest.fixture
def then(path):
    return json.loads(json.dumps(Hdf5Rows(path, COLUMNS).identity()))


def test_what_was_not_touched_is_not_even_read(path, then):
    assert told(path, then | {"sha256": "not looked at"}) is None


def test_a_copy_is_the_same_file_and_it_is_said(path, then, tmp_path):
    shutil.copyfile(path, tmp_path / "copy.h5")
    (tmp_path / "copy.h5").replace(path)
    os.utime(path, ns=(0, 0))
    assert "was written or copied since the run began" in told(path, then)


@pytest.mark.parametrize("change", ["seed", "rows", "attribute", "value"])
def test_another_file_in_its_place_is_refused(path, then, change):
    if change in ("seed", "rows"):
        write_control(path.with_name("other.h5"), **{change: 601}).replace(path)
    else:
        with h5py.File(path, "r+") as file:
            if change == "attribute":
                file.attrs["train_rows"] = 100
            else:
                file["controls"][599, 0] += 1
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match=r"w.h5 changed since the run began: .*Put the old file back"):
        told(path, then)


def test_a_run_that_is_continued_looks_at_its_file(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, folder, said = Control(data="w.h5", batch_size=50, steps=5), RunFolder(tmp_path / "run"), []
    folder.create()
    assert recipe.data == str(path)  # as it was typed it would be another file elsewhere
    prepare_data(folder, recipe, said.append)
    folder.write("plan.json", {})
    write_control(tmp_path / "other.h5", seed=7).replace(path)
    with pytest.raises(DataError, match="changed since the run began"):
        prepare_data(folder, dataclasses.replace(recipe), said.append)


def test_ones_own_hdf5_is_looked_at_too(path):
    one = Hdf5(path, COLUMNS)
    then = one.identity()
    assert one.require_same(then) is None
    write_control(path.with_name("other.h5"), seed=7).replace(path)
    with pytest.raises(DataError, match="changed since the run began"):
        Hdf5(path, COLUMNS).require_same(then)
