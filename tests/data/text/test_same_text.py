"""A run goes on with the text it began with, whatever its time of writing says; with another it is refused."""

import os

import pytest

from plimsoll.api.train import prepare_data
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.tokenizer import train_byte_bpe
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


def begun(text, folder):
    recipe = preset("stories").replace(dataset_id=str(text), **SIZES)
    folder.create()
    prepare_data(folder, recipe, lambda words: None)
    folder.write("plan.json", {})
    return recipe


def test_a_run_whose_text_has_another_bit_is_not_continued(text, tmp_path):
    folder = RunFolder(tmp_path / "run")
    recipe = begun(text, folder)
    prepare_data(folder, recipe, lambda words: None)
    flip(text, 999)
    with pytest.raises(DataError, match=r"a.txt is not the data of this run any more: a.txt has other content"):
        prepare_data(folder, recipe, lambda words: None)


def test_a_run_whose_own_files_have_another_bit_is_not_continued(text, tmp_path):
    folder = RunFolder(tmp_path / "run")
    recipe = begun(text, folder)
    for name in ("tokenizer.json", "validation.npy", "data.json"):
        file = folder.path / name
        flip(file, 20)
        with pytest.raises(RunError, match=rf"{name} has changed since the run was prepared .* put the old file back"):
            prepare_data(folder, recipe, lambda words: None)
        flip(file, 20)
        moved = file.rename(tmp_path / name)
        with pytest.raises(RunError, match=rf"{name} is not there any more"):
            prepare_data(folder, recipe, lambda words: None)
        moved.rename(file)
    prepare_data(folder, recipe, lambda words: None)


def test_a_text_that_is_cut_while_it_is_read_ends_no_epoch_early(text):
    documents = open_documents(str(text))
    pieces = documents.pieces()
    next(pieces)
    os.truncate(text, text.stat().st_size // 2)
    with pytest.raises(DataError, match="changed while it was being read"):
        list(pieces)


def test_a_run_goes_on_with_its_tokenizer_wherever_it_lies_and_with_no_other(text, tmp_path, listed_documents):
    def trained(name, sentence):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        train_byte_bpe(listed_documents([sentence] * 50), 280).save(path)
        return str(path)

    folder = RunFolder(tmp_path / "run")
    folder.create()
    sizes = SIZES | {"vocab_size": None}
    recipe = preset("stories").replace(dataset_id=str(text), tokenizer=trained("a.json", "abc def ghi"), **sizes)
    prepare_data(folder, recipe, lambda words: None)
    folder.write("plan.json", {})

    prepare_data(folder, recipe.replace(tokenizer=trained("moved/a.json", "abc def ghi")), lambda words: None)
    with pytest.raises(DataError, match=r"b\.json is not the tokenizer that this run began with"):
        prepare_data(folder, recipe.replace(tokenizer=trained("b.json", "xyz uvw rst")), lambda words: None)
