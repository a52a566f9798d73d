"""A packed folder is the token stream of its documents, whatever happened while it was made."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from hypotheses import examples
from plimsoll.data.disk import locked
from plimsoll.data.packed import prepare as text
from plimsoll.data.packed import writer
from plimsoll.data.packed.encoding import encoded
from plimsoll.data.packed.options import TextSet
from plimsoll.data.packed.packed import open_packed
from plimsoll.data.packed.prepare import Extent, build
from plimsoll.data.packed.writer import Counts, TextFolder
from plimsoll.data.text.documents import Piece, is_held_out
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.errors import DataError, RecipeError, StoppedError

TEXTS = [f"Ship {i} loads {i * 37 % 11} crates of {'tea ' * (i % 7)}and sails." for i in range(400)]
TEXTS[17] = "one long line after the other\n" * 8_000  # 240 KB: four pieces
TEXTS[203] = "long and without a break " * 4_000
FILES = ("tokens.bin", "validation.bin", "documents.npy", "tokenizer.json", "tokenizer_config.json", "meta.json")


def write_texts(folder, texts=TEXTS):
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def made(dataset):
    return TextSet(dataset_id=dataset, vocab_size=400)


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "packed"
    build(made, out, workers=2)
    return out


def content(folder):
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


def documents_of(folder):
    """Texts to train on, by their starts, and those that are held out, by end-of-text."""
    packed, tokenizer = open_packed(folder), load_tokenizer(folder)
    ids = packed.read("tokens.bin", 0, packed.tokens)
    parts = np.split(ids, packed.starts()[1:])
    assert all(part[-1] == packed.end_of_text for part in parts)
    held_out = packed.read("validation.bin", 0, packed.validation_tokens)
    ends = np.flatnonzero(held_out == packed.end_of_text)
    others = np.split(held_out, ends + 1)
    assert not len(others[-1])
    return [tokenizer.decode(part[:-1]) for part in parts], [tokenizer.decode(part[:-1]) for part in others[:-1]]


def test_the_folder_is_the_token_stream_of_the_documents(whole):
    held_out = [text for text in TEXTS if is_held_out(text[:65_536])]
    assert held_out
    train, others = documents_of(whole)
    assert train == [text for text in TEXTS if text not in held_out]
    assert others == held_out
    meta = json.loads((whole / "meta.json").read_text())
    assert meta["dtype"] == "uint16"
    assert meta["vocab_size"] == 400
    assert (meta["documents"], meta["validation_documents"]) == (len(train), len(others))
    assert sorted(os.listdir(whole)) == sorted(FILES)
    assert not list(whole.parent.glob("*.lock"))


def test_the_number_of_threads_changes_nothing(made, whole, tmp_path):
    build(made, tmp_path / "packed", workers=1)
    assert content(tmp_path / "packed") == content(whole)


SLOWLY = """
import sys, time
from pathlib import Path
from plimsoll.data.packed import encoding
from plimsoll.data.packed import prepare as text
from plimsoll.data.packed.writer import TextFolder
from plimsoll.data.packed.options import TextSet
text.MARK_SECONDS = float(sys.argv[3])
encoding.BLOCK = 500
append = TextFolder.append
def slow(self, *rows):
    append(self, *rows)
    print(self.counts.tokens, flush=True)
    time.sleep(0.004)
TextFolder.append = slow
text.build(TextSet(dataset_id=sys.argv[1], vocab_size=400), Path(sys.argv[2]), workers=2)
"""


def test_a_folder_whose_making_is_killed_again_and_again_is_the_same_folder(dataset, whole, tmp_path):
    """Marked after every block or hardly ever; killed inside of long documents, too: blocks there are single pieces."""
    out, continued = tmp_path / "packed", []
    for after, every in ((1, 0), (3, 0), (2, 1000), (4, 0), (5, 0.01), (7, 0), (None, 0)):
        command = [sys.executable, "-c", SLOWLY, dataset, str(out), str(every)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for seen, line in enumerate(process.stdout, 1):
            if seen == 1:
                continued.append(int(line))
            if seen == after:
                time.sleep(0.001 * after)  # somewhere in the next block
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        assert process.wait() == (0 if after is None else -signal.SIGKILL)
        assert (out / "meta.json").exists() == (after is None)
    assert continued == sorted(continued)
    assert continued[-1] > continued[0]
    assert content(out) == content(whole)


def test_a_folder_that_is_finished_is_left_as_it_is(made, whole):
    before = {name: os.stat(whole / name).st_mtime_ns for name in FILES}
    found = build(made, whole)
    assert found["finished_before"]
    assert found["tokens"] == found["tokens_before"] == open_packed(whole).tokens
    assert {name: os.stat(whole / name).st_mtime_ns for name in FILES} == before


def test_a_folder_of_other_options_is_neither_continued_nor_overwritten(made, whole, dataset, tmp_path, monkeypatch):
    other = TextSet(dataset_id=dataset, vocab_size=401)
    with pytest.raises(DataError, match="vocab_size 400 there and 401 here"):
        build(other, whole)
    interrupted(made, tmp_path / "packed", monkeypatch)
    with pytest.raises(DataError, match="was begun with other options, vocab_size 400 there and 401 here"):
        build(other, tmp_path / "packed")
    build(made, tmp_path / "packed")
    assert content(tmp_path / "packed") == content(whole)


def interrupted(made, out, monkeypatch, *, after=2):
    """As Ctrl-C leaves it: some blocks marked, the last one not."""

    def stopping(self, *rows, append=TextFolder.append, count=[0]):  # noqa: B006  (counts over calls)
        count[0] += 1
        if count[0] > after:
            raise KeyboardInterrupt
        append(self, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(TextFolder, "append", stopping)
        patch.setattr(text, "MARK_SECONDS", 0)
        patch.setattr("plimsoll.data.packed.encoding.BLOCK", 2_000)
        with pytest.raises(KeyboardInterrupt):
            build(made, out)
    with pytest.raises(DataError, match="is not finished"):
        open_packed(out)


def write_parquet(folder):
    parquet.write_table(pa.table({"text": TEXTS}), folder / "a.parquet", row_group_size=50)
    return folder / "a.parquet"


def write_gz(folder):
    (folder / "a.txt.gz").write_bytes(gzip.compress("<|endoftext|>".join(TEXTS).encode()))
    return folder / "a.txt.gz"


def write_splits(folder):
    """Streamed through `datasets`, as a hub id is: nobody knows how much is left."""
    for split in ("train", "test"):
        parquet.write_table(pa.table({"text": TEXTS}), folder / f"{split}-0.parquet", row_group_size=50)
    return folder


@pytest.mark.parametrize("write", [write_parquet, write_gz, write_splits])
def test_it_continues_in_every_kind_of_file(write, tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    made = TextSet(dataset_id=str(write(tmp_path / "texts")), vocab_size=400)
    for after in (1, 9):
        interrupted(made, tmp_path / "packed", monkeypatch, after=after)
    assert build(made, tmp_path / "packed")["tokens_before"] > 0
    build(made, tmp_path / "whole")
    assert content(tmp_path / "packed") == content(tmp_path / "whole")


def test_texts_that_changed_since_it_was_begun_are_refused(tmp_path, monkeypatch):
    made = TextSet(dataset_id=write_texts(tmp_path), vocab_size=400)
    interrupted(made, tmp_path / "packed", monkeypatch)
    write_texts(tmp_path, TEXTS[:-1])
    with pytest.raises(DataError, match="belongs to other files"):
        build(made, tmp_path / "packed")


def test_what_cannot_be_continued_is_said(made, tmp_path, monkeypatch):
    out = tmp_path / "packed"
    interrupted(made, out, monkeypatch)
    os.truncate(out / "tokens.bin", 10)
    with pytest.raises(DataError, match=r"tokens\.bin is shorter than the .* bytes that progress\.json knows of"):
        build(made, out)
    for damage in ("{", "[]", '{"made_with": 3}', '{"made_with": {}, "counts": {"x": 1}}'):
        (out / "progress.json").write_text(damage)
        with pytest.raises(DataError, match=r"progress\.json is damaged"):
            build(made, out)


def test_a_folder_or_file_of_somebody_else_is_not_touched(made, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/a.txt").write_text("dear reader")
    with pytest.raises(DataError, match=r"letters is there already, and holds a\.txt"):
        build(made, tmp_path / "letters")
    with pytest.raises(DataError, match="is there already, and holds no folder, but a file"):
        build(made, tmp_path / "letters/a.txt")
    assert (tmp_path / "letters/a.txt").read_text() == "dear reader"


def test_two_writers_are_one_too_many(made, tmp_path):
    lock = locked(tmp_path / "packed")
    with pytest.raises(DataError, match=r"another process is writing .*packed: wait for it"):
        build(made, tmp_path / "packed")
    lock.close()


def test_a_disk_without_room_is_refused_before_the_first_token(made, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "free_bytes", lambda path: 10_000)
    with pytest.raises(DataError, match=r"takes about .* KiB of ids, and 9\.8 KiB are free.*--max-examples"):
        build(made, tmp_path / "packed")


def test_a_disk_that_becomes_full_stops_it_and_room_continues_it(made, whole, tmp_path, monkeypatch):
    left = iter([10**9, 10**9, 0, 0])
    with monkeypatch.context() as patch:
        patch.setattr(writer, "free_bytes", lambda path: next(left))
        patch.setattr("plimsoll.data.packed.encoding.BLOCK", 2_000)
        with pytest.raises(StoppedError, match=r"the disk is full \(0 B free at .*run the same command again"):
            build(made, tmp_path / "packed")
    found = build(made, tmp_path / "packed")
    assert 0 < found["tokens_before"] < found["tokens"]
    assert content(tmp_path / "packed") == content(whole)


def test_a_tokenizer_that_is_given_is_kept_with_its_end_of_text(dataset, tmp_path):
    given, _ = wide_tokenizer(tmp_path, ids=70_001)
    out = tmp_path / "packed"
    build(TextSet(dataset_id=dataset, tokenizer=str(given), max_examples=5), out)
    packed = open_packed(out)
    assert (packed.dtype, packed.vocab_size, packed.end_of_text) == ("uint32", 70_001, 70_000)
    assert load_tokenizer(out).end_of_text == 70_000
    ids = packed.read("tokens.bin", 0, packed.tokens)
    assert set(ids.tolist()) == {69_999, 70_000}
    given.write_text(given.read_text().replace("69999", "69998"))
    with pytest.raises(DataError, match=r"tokenizer .* there and .* here"):
        build(TextSet(dataset_id=dataset, tokenizer=str(given), max_examples=5), out)


def wide_tokenizer(folder, *, ids):
    """Every word is the last id but one; end-of-text, which only its configuration names, the last one."""
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": ids - 2, "[fin]": ids - 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "[fin]"}')
    return folder / "tokenizer.json", folder


def test_a_tokenizer_with_ids_beyond_the_type_is_refused(dataset, tmp_path):
    given, _ = wide_tokenizer(tmp_path, ids=300)
    given.write_text(given.read_text().replace("299", str(2**31)))
    with pytest.raises(DataError, match="has ids up to 2,147,483,648, and the largest vocabulary that is packed"):
        build(TextSet(dataset_id=dataset, tokenizer=str(given)), tmp_path / "packed")
    assert not list(tmp_path.glob("packed/*"))


def test_nothing_but_held_out_documents_are_no_folder(tmp_path):
    only = [text for text in map(str, range(3000)) if is_held_out(text)]
    given, _ = wide_tokenizer(tmp_path, ids=300)
    with pytest.raises(DataError, match=r"none of its .* documents is left to train on"):
        build(TextSet(dataset_id=write_texts(tmp_path, only), tokenizer=str(given)), tmp_path / "packed")
    with pytest.raises(DataError, match="is not finished"):
        open_packed(tmp_path / "packed")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset_id": " "}, "--dataset-id is empty"),
        ({"vocab_size": 256}, "--vocab-size must be from 257"),
        ({"vocab_size": 2**20 + 1}, "to 1,048,576, got 1,048,577"),
        ({"vocab_size": 400, "tokenizer": "t.json"}, "is for a tokenizer that is trained, and --tokenizer t.json"),
        ({"max_examples": 0}, "--max-examples must be 1 or more"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(RecipeError, match=said):
        TextSet(**({"dataset_id": "x"} | options))


def test_no_workers_are_refused(made, tmp_path):
    with pytest.raises(RecipeError, match="--workers must be 1 or more, got 0"):
        build(made, tmp_path / "packed", workers=0)


class Counting:
    """An encoder of one id a text, that knows how many blocks are under way."""

    ahead = 3

    def __init__(self):
        self.under_way, self.most = 0, 0

    def submit(self, texts, ends):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return self.result

    def result(self):
        self.under_way -= 1
        return np.zeros(1, np.int32), np.ones(1, np.int64)


def test_no_more_blocks_are_held_than_the_encoder_looks_ahead(monkeypatch):
    monkeypatch.setattr("plimsoll.data.packed.encoding.BLOCK", 1)
    encoder = Counting()
    pieces = (Piece(str(place), {}, True, False) for place in range(50))
    assert [block[0].text for block, *_ in encoded(pieces, encoder)] == [str(place) for place in range(50)]
    assert encoder.most == Counting.ahead + 1


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 5)), min_size=1, max_size=30), st.data())
def test_starts_and_sums_do_not_depend_on_how_pieces_are_put_together(tmp_path_factory, drawn, data):
    """Pieces of documents that end and are held out at random, in blocks of random sizes, with a break in between."""
    pieces, held_out = [], None
    for place, (last, hold, _) in enumerate(drawn):
        held_out = hold if held_out is None else held_out
        position = {"place": place, "held_out": None if last else held_out}
        pieces.append(Piece("x", position, last, held_out))
        held_out = None if last else held_out
    lengths = np.array([length for *_, length in drawn])
    values = [np.full(length, place % 256, np.int32) for place, length in enumerate(lengths)]
    out = tmp_path_factory.mktemp("made") / "packed"
    tokenizer = load_tokenizer(wide_tokenizer(tmp_path_factory.mktemp("t"), ids=300)[0])
    todo, expected = deque(range(len(pieces))), Counts()
    while todo:
        with TextFolder(out, {}) as folder:
            folder.begin(tokenizer)
            for _ in range(data.draw(st.integers(1, 3))):
                take = [todo.popleft() for _ in range(min(len(todo), data.draw(st.integers(1, 4))))]
                if take:
                    ids = np.concatenate([values[place] for place in take])
                    folder.append([pieces[place] for place in take], ids, lengths[take])
            folder.mark()
            counts = folder.counts
    starts, at, begins = [], 0, True
    for piece, length in zip(pieces, lengths, strict=True):
        if begins and not piece.held_out:
            starts.append(at)
        expected.documents += begins and not piece.held_out
        expected.validation_documents += begins and piece.held_out
        at += 0 if piece.held_out else int(length)
        begins = piece.last
    expected.tokens, expected.validation_tokens, expected.characters = at, int(lengths.sum()) - at, len(pieces)
    assert counts == expected
    assert np.fromfile(out / "documents.npy", "<i8", offset=128).tolist() == starts
    flat = [value for piece, ids in zip(pieces, values, strict=True) if not piece.held_out for value in ids]
    assert np.fromfile(out / "tokens.bin", "<u2").tolist() == flat


def test_the_share_that_is_read_grows_to_all_of_it(dataset, tmp_path):
    (tmp_path / "plain.txt").write_text("\n\n".join(TEXTS))
    for name, limit in ((dataset, None), (str(tmp_path / "plain.txt"), None), (dataset, 100)):
        documents = open_documents(name, max_examples=limit)
        extent = Extent(documents)
        shares = [extent.share(None), *(extent.share(piece.position) for piece in documents.pieces())]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)
        assert len(set(shares)) > 50
