"""A run goes on with the text it began with, whatever its time of writing says; with another it is refused."""

import dataclasses
import os
import shutil

import pytest

from plimsoll.api.train import prepare_data
from plimsoll.data import same_data
from plimsoll.data.same_data import files_facts, require_same_files
from plimsoll.data.text.opening import open_documents
from plimsoll.errors import DataError, RunError
from plimsoll.files.run_folder import RunFolder
from plimsoll.recipes.registry import preset

SIZES = {"width": 32, "layers": 2, "heads": 1, "vocab_size": 300, "seq_len": 16, "batch_size": 4, "steps": 8}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"abc def ghi {n} " * 30 for n in range(120)))
    return path


def flip(path, at):
    """One bit, by a disk: the time of writing stays what it was."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_copy_is_the_same_text(text):
    then = files_facts([text])
    shutil.copyfile(text, text.with_name("b.txt"))
    require_same_files("it", [text.with_name("b.txt")], then)
    assert files_facts([text.with_name("b.txt")]) == then


@pytest.mark.parametrize("at", [0, 4321, -1])
def test_a_single_bit_is_noticed(text, at):
    then = files_facts([text])
    flip(text, at)
    with pytest.raises(DataError, match=r"changed since the run began: then 1 files and [\d,]+ bytes.*--run"):
        require_same_files("it", [text], then)


def test_of_a_large_text_some_places_are_looked_at(text, monkeypatch):
    monkeypatch.setattr(same_data, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(same_data, "PLACE_BYTES", 100)
    size = text.stat().st_size
    for at, noticed in ((50, True), (size // 2 + 50, True), (size - 50, True), (size // 4, False)):
        then = files_facts([text])
        flip(text, at)
        assert (files_facts([text]) != then) is noticed


def begun(text, folder):
    recipe = dataclasses.replace(preset("stories"), dataset_id=str(text), **SIZES)
    folder.create()
    prepare_data(folder, recipe, lambda words: None)
    folder.write("plan.json", {})
    return recipe


def test_a_run_whose_text_has_another_bit_is_not_continued(text, tmp_path):
    folder = RunFolder(tmp_path / "run")
    recipe = begun(text, folder)
    prepare_data(folder, recipe, lambda words: None)
    flip(text, 999)
    with pytest.raises(DataError, match="changed since the run began"):
        prepare_data(folder, recipe, lambda words: None)


@pytest.mark.parametrize("name", ["tokenizer.json", "validation.npy", "data.json"])
def test_a_run_whose_own_files_have_another_bit_is_not_continued(text, tmp_path, name):
    folder = RunFolder(tmp_path / "run")
    recipe = begun(text, folder)
    flip(folder.path / name, 20)
    with pytest.raises(RunError, match=rf"{name} has changed since the run was prepared .* put the old file back"):
        prepare_data(folder, recipe, lambda words: None)
    (folder.path / name).unlink()
    with pytest.raises(RunError, match=rf"{name} is not there any more"):
        prepare_data(folder, recipe, lambda words: None)


def test_a_text_that_is_cut_while_it_is_read_ends_no_epoch_early(text):
    documents = open_documents(str(text))
    pieces = documents.pieces()
    next(pieces)
    os.truncate(text, text.stat().st_size // 2)
    with pytest.raises(DataError, match="changed while it was being read"):
        list(pieces)
