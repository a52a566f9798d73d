"""What a packed folder on its way counts, writes and has on disk, piece by piece."""

import json
import os

import numpy as np
import pytest

from plimsoll.data.packed import writer
from plimsoll.data.packed.writer import TextFolder
from plimsoll.data.text.documents import Piece
from plimsoll.errors import DataError, StoppedError


def piece(text, *, last=True, held_out=False):
    return Piece(text, {"held_out": None if last else held_out}, last, held_out)


PIECES = [piece("ab"), piece("cde", held_out=True), piece("fg", last=False), piece("h"), piece("i", last=False)]
IDS, LENGTHS = np.arange(13, dtype=np.int32), np.array([3, 4, 2, 2, 2])
"""Of documents of 3, 4 held out, 2 and 2, and the beginning of another."""


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    with TextFolder(tmp_path / "packed", {"seed": 1}) as made:
        made.begin(byte_tokenizer)
        yield made


def whole(folder, name, dtype="<u2", offset=0):
    return np.fromfile(folder.out / name, dtype, offset=offset).tolist()


def test_ids_go_where_their_document_belongs_and_each_beginning_is_noted(folder):
    folder.append(PIECES, IDS, LENGTHS)
    folder.append([piece("j"), piece("k")], np.array([20, 21, 22], np.int32), np.array([1, 2]))
    folder.mark()
    assert whole(folder, "tokens.bin") == [0, 1, 2, 7, 8, 9, 10, 11, 12, 20, 21, 22]
    assert whole(folder, "validation.bin") == [3, 4, 5, 6]
    assert whole(folder, "documents.npy", "<i8", 128) == [0, 3, 7, 10]
    counts = folder.counts
    assert (counts.tokens, counts.validation_tokens, counts.documents, counts.validation_documents) == (12, 4, 4, 1)
    assert counts.characters == 2 + 3 + 2 + 1 + 1 + 1 + 1


def test_a_document_that_goes_on_begins_once(folder):
    folder.append([piece("a", last=False)], np.array([1], np.int32), np.array([1]))
    folder.append([piece("b", last=False)], np.array([2], np.int32), np.array([1]))
    folder.append([piece("c"), piece("d", held_out=True, last=False)], np.array([3, 4], np.int32), np.array([1, 1]))
    folder.append([piece("e", held_out=True), piece("f")], np.array([5, 6], np.int32), np.array([1, 1]))
    folder.mark()
    assert whole(folder, "documents.npy", "<i8", 128) == [0, 3]
    assert (folder.counts.documents, folder.counts.validation_documents) == (2, 1)


def test_what_is_marked_is_on_disk_before_the_mark_and_the_mark_before_its_name(folder, monkeypatch):
    folder.append(PIECES, IDS, LENGTHS)
    synced, replaced = [], []

    def fsync(descriptor):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        content = (folder.out / name).read_bytes()
        synced.append((name, len(content) if not name.endswith(".new") else json.loads(content)["seconds"]))

    replace = type(folder.out).replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(
        type(folder.out), "replace", lambda new, old: (replaced.append((len(synced), old.name)), replace(new, old))
    )
    folder.seconds = 2.0
    folder.mark(seconds=1.5)
    assert synced == [
        ("tokens.bin", 2 * 9), ("validation.bin", 2 * 4), ("documents.npy", 128 + 8 * 3), ("progress.json.new", 3.5)
    ]  # fmt: skip
    assert replaced == [(4, "progress.json")]


@pytest.mark.parametrize(("lacking", "stopped"), [(0, False), (1, True)])
def test_16_mib_stay_free_beside_twice_what_is_written(folder, monkeypatch, lacking, stopped):
    monkeypatch.setattr(writer, "free_bytes", lambda path: 16 * 2**20 + 2 * IDS.nbytes - lacking)
    marked = []
    monkeypatch.setattr(folder, "mark", lambda: marked.append(folder.counts.tokens))
    if stopped:
        with pytest.raises(StoppedError, match=r"the disk is full .* Make room, and run the same command again"):
            folder.append(PIECES, IDS, LENGTHS)
        assert marked == [0]
    else:
        folder.append(PIECES, IDS, LENGTHS)
        assert marked == []


def test_a_folder_that_is_finished_has_its_counts_and_no_progress(folder):
    folder.append(PIECES, IDS, LENGTHS)
    folder.finish(source="five pieces")
    meta = json.loads((folder.out / "meta.json").read_text())
    assert (meta["format"], meta["dtype"], meta["vocab_size"], meta["end_of_text"]) == (1, "uint16", 257, 256)
    assert (meta["tokens"], meta["documents"], meta["source"]) == (9, 3, "five pieces")
    assert np.load(folder.out / "documents.npy").tolist() == [0, 3, 7]
    assert sorted(os.listdir(folder.out)) == [
        "documents.npy", "meta.json", "tokenizer.json", "tokenizer_config.json", "tokens.bin", "validation.bin"
    ]  # fmt: skip


def test_what_was_not_marked_is_cut_off_when_it_is_continued(tmp_path, byte_tokenizer):
    out = tmp_path / "packed"
    with TextFolder(out, {"seed": 1}) as made:
        made.begin(byte_tokenizer)
        made.append(PIECES[:2], IDS[:7], LENGTHS[:2])
        made.mark(seconds=4.0)
        made.append(PIECES[2:4], IDS[7:11], LENGTHS[2:4])
    with TextFolder(out, {"seed": 1}) as made:
        assert (made.seconds, made.counts.tokens, made.position) == (4.0, 3, {"held_out": None})
        made.begin(made.kept_tokenizer)
        made.append(PIECES[2:4], IDS[7:11], LENGTHS[2:4])
        made.finish(source="four pieces")
    assert whole(made, "tokens.bin") == [0, 1, 2, 7, 8, 9, 10]
    assert np.load(out / "documents.npy").tolist() == [0, 3]


@pytest.mark.parametrize("name", ["tokens.bin", "validation.bin", "documents.npy"])
def test_a_file_that_is_shorter_than_its_mark_is_not_continued(tmp_path, byte_tokenizer, name):
    out = tmp_path / "packed"
    with TextFolder(out, {}) as made:
        made.begin(byte_tokenizer)
        made.append(PIECES, IDS, LENGTHS)
        made.mark()
    size = (out / name).stat().st_size
    with TextFolder(out, {}) as made:
        made.begin(made.kept_tokenizer)  # as long as it was
    os.truncate(out / name, size - 1)
    with TextFolder(out, {}) as made, pytest.raises(DataError, match=f"is shorter than the {size} bytes"):
        made.begin(made.kept_tokenizer)
