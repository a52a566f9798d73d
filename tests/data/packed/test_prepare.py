"""A packed folder is the token stream of its documents, whatever happened while it was made."""

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from plimsoll.data.packed import prepare, shards
from plimsoll.data.packed.encoding import encoded
from plimsoll.data.packed.packed import open_packed
from plimsoll.data.packed.prepare import build
from plimsoll.data.text.documents import Piece, is_held_out
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.options import TextSet
from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.errors import DataError, PlimsollError, RecipeError, StoppedError

WITH_RAY = importlib.util.find_spec("ray") is not None
TEXTS = [f"Ship {i} loads {i * 37 % 11} crates of {'tea ' * (i % 7)}and sails." for i in range(400)]
TEXTS[17] = "one long line after the other\n" * 8_000  # 240 KB: four pieces
TEXTS[203] = "long and without a break " * 4_000


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
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def documents_of(folder):
    """Texts to train on, and those that are held out, by end-of-text."""
    packed, tokenizer = open_packed(folder), load_tokenizer(folder)
    sides = []
    for name, tokens in (("tokens.bin", packed.tokens), ("validation.bin", packed.validation_tokens)):
        ids = packed.read(name, 0, tokens)
        *parts, rest = np.split(ids, np.flatnonzero(ids == packed.end_of_text) + 1)
        assert not len(rest)
        sides.append([tokenizer.decode(part[:-1]) for part in parts])
    return sides


def test_the_folder_is_the_token_stream_of_the_documents(whole):
    held_out = [text for text in TEXTS if is_held_out(text[:65_536])]
    assert held_out
    train, others = documents_of(whole)
    assert train == [text for text in TEXTS if text not in held_out]
    assert others == held_out
    packed = open_packed(whole)
    assert (packed.dtype, packed.vocab_size) == ("uint16", 400)
    assert (packed.documents, packed.validation_documents) == (len(train), len(others))
    assert packed.characters == sum(map(len, TEXTS))
    files = {"meta.json", "manifest.json", "tokenizer.json", "tokenizer_config.json", "shard_00000"}
    assert set(os.listdir(whole)) == files
    assert os.listdir(whole.parent) == ["packed"]


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of a block or two; a long document lies in several."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 1_500)
    monkeypatch.setattr("plimsoll.data.packed.encoding.BLOCK", 500)


def test_shards_are_the_same_stream(made, whole, tmp_path, small_shards):
    build(made, tmp_path / "packed")
    packed, expected = open_packed(tmp_path / "packed"), open_packed(whole)
    assert len(packed.shards) > 5
    for name in ("tokens.bin", "validation.bin"):
        both = (each.read(name, 0, each.tokens) for each in (packed, expected))
        np.testing.assert_array_equal(*both)
    for name in ("tokens", "validation_tokens", "documents", "validation_documents", "characters"):
        assert getattr(packed, name) == getattr(expected, name)


def test_the_number_of_threads_changes_nothing(made, whole, tmp_path):
    build(made, tmp_path / "packed", workers=1)
    assert content(tmp_path / "packed") == content(whole)


SLOWLY = """
import sys, time
from pathlib import Path
from plimsoll.data.packed import encoding, shards
from plimsoll.data.text.options import TextSet
from plimsoll.data.packed.prepare import build
shards.SHARD_BYTES, encoding.BLOCK = 1_500, 500
add = shards.Shard.add
def slow(self, *rows):
    add(self, *rows)
    print(flush=True)
    time.sleep(0.004)
shards.Shard.add = slow
build(TextSet(dataset_id=sys.argv[1], vocab_size=400), Path(sys.argv[2]), workers=2)
"""


def test_a_folder_whose_making_is_killed_again_and_again_loses_no_shard_and_is_the_same_folder(
    made, dataset, tmp_path, small_shards
):
    """Killed inside of long documents, too: blocks there are single pieces."""
    out, finished = tmp_path / "packed", 0
    for after in (1, 6, None):
        command = [sys.executable, "-c", SLOWLY, dataset, str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for seen, _ in enumerate(process.stdout, 1):
            if seen == after:
                time.sleep(0.001 * after)  # somewhere in the next block
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        assert process.wait() == (0 if after is None else -signal.SIGKILL)
        assert out.exists() == (after is None)
        there = len(list((tmp_path / "packed.partial").glob("shard_?????/manifest.json")))
        assert there >= finished or after is None
        finished = there
    build(made, tmp_path / "alone")
    assert content(out) == content(tmp_path / "alone")


def test_a_folder_that_is_finished_is_left_as_it_is(made, whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    found = build(made, whole)
    assert found["finished_before"]
    assert found["tokens"] == found["tokens_before"] == open_packed(whole).tokens
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_a_folder_of_other_options_is_neither_continued_nor_overwritten(
    made, whole, dataset, tmp_path, monkeypatch, small_shards
):
    other = TextSet(dataset_id=dataset, vocab_size=401)
    with pytest.raises(DataError, match=r"packed is there already, and .*vocab_size was 400 and is 401: name another"):
        build(other, whole)
    interrupted(made, tmp_path / "packed", monkeypatch)
    with pytest.raises(DataError, match=r"shard_00000 is there already, and .*vocab_size was 400 and is 401"):
        build(other, tmp_path / "packed")
    fewer = TextSet(dataset_id=write_texts(tmp_path, TEXTS[:-1]), vocab_size=400)
    with pytest.raises(DataError, match=r"shard_00000 is there already, and texts.jsonl has \d+ fewer bytes"):
        build(fewer, tmp_path / "packed")
    assert build(made, tmp_path / "packed")["tokens_before"] > 0


def interrupted(made, out, monkeypatch):
    """As Ctrl-C leaves it: some shards complete, the last one not."""
    calls, add = count(), shards.Shard.add

    def stopping(self, *rows):
        if next(calls) == 6:
            raise KeyboardInterrupt
        add(self, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(shards.Shard, "add", stopping)
        with pytest.raises(KeyboardInterrupt):
            build(made, out)
    with pytest.raises(DataError, match="is not finished"):
        open_packed(out)


def test_it_continues_in_a_stream(tmp_path, monkeypatch, small_shards):
    """Of `datasets`, as a hub id is: nobody knows how much is left."""
    (tmp_path / "texts").mkdir()
    for split in ("train", "test"):
        parquet.write_table(pa.table({"text": TEXTS}), tmp_path / f"texts/{split}-0.parquet", row_group_size=50)
    made = TextSet(dataset_id=str(tmp_path / "texts"), vocab_size=400)
    interrupted(made, tmp_path / "packed", monkeypatch)
    assert build(made, tmp_path / "packed")["tokens_before"] > 0
    build(made, tmp_path / "whole")
    assert ids_of(tmp_path / "packed") == ids_of(tmp_path / "whole")


def ids_of(folder):
    """Of a stream, positions after a break are other words for the same place."""
    return {path: ids for path, ids in content(folder).items() if path.suffix == ".bin"}


def test_a_disk_without_room_is_refused_before_the_first_token(made, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "free_bytes", lambda path: 100)
    with pytest.raises(DataError, match=r"takes about .*B of ids, and 100 B are free.*--max-examples"):
        build(made, tmp_path / "packed")


def test_a_disk_that_becomes_full_stops_it_and_room_continues_it(made, tmp_path, monkeypatch, small_shards):
    add = shards.Shard.add
    calls = count()

    def fails_at_last(*arguments):
        if next(calls) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards.Shard, "add", fails_at_last)
        with pytest.raises(StoppedError, match=r"the disk became full .*run the same command again"):
            build(made, tmp_path / "packed")
    found = build(made, tmp_path / "packed")
    assert 0 < found["tokens_before"] < found["tokens"]


def test_a_tokenizer_that_is_given_is_kept_with_its_end_of_text(dataset, tmp_path):
    given = wide_tokenizer(tmp_path, ids=70_001)
    out = tmp_path / "packed"
    build(TextSet(dataset_id=dataset, tokenizer=str(given), max_examples=5), out)
    packed = open_packed(out)
    assert (packed.dtype, packed.vocab_size, packed.end_of_text) == ("uint32", 70_001, 70_000)
    assert load_tokenizer(out).end_of_text == 70_000
    ids = packed.read("tokens.bin", 0, packed.tokens)
    assert set(ids.tolist()) == {69_999, 70_000}
    given.write_text(given.read_text().replace("69999", "69998"))
    with pytest.raises(DataError, match=r"tokenizer_sha256 was .* and is "):
        build(TextSet(dataset_id=dataset, tokenizer=str(given), max_examples=5), out)


def wide_tokenizer(folder, *, ids):
    """Every word is the last id but one; end-of-text, which only its configuration names, the last one."""
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": ids - 2, "[fin]": ids - 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "[fin]"}')
    return folder / "tokenizer.json"


def test_nothing_but_held_out_documents_are_no_folder(tmp_path):
    only = [text for text in map(str, range(3000)) if is_held_out(text)]
    given = wide_tokenizer(tmp_path, ids=300)
    with pytest.raises(DataError, match=r"none of its .* documents is left to train on"):
        build(TextSet(dataset_id=write_texts(tmp_path, only), tokenizer=str(given)), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset_id": " "}, "--dataset-id is empty"),
        ({"vocab_size": 256}, "--vocab-size must be from 257"),
        ({"vocab_size": 2**20 + 1}, "to 1,048,576 .*got 1,048,577"),
        ({"vocab_size": 400, "tokenizer": "t.json"}, "is for a tokenizer that is trained, and --tokenizer t.json"),
    ],
)
def test_options_that_cannot_be_are_refused(made, tmp_path, options, said):
    with pytest.raises(RecipeError, match=said):
        TextSet(**({"dataset_id": "x"} | options))
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


def test_the_share_that_is_read_grows_to_all_of_it(dataset, tmp_path):
    (tmp_path / "plain.txt").write_text("\n\n".join(TEXTS))
    for name, limit in ((dataset, None), (str(tmp_path / "plain.txt"), None), (dataset, 100)):
        documents = open_documents(name, max_examples=limit)
        shares = [documents.share(None), *(documents.share(piece.position) for piece in documents.pieces())]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)
        assert len(set(shares)) > 50


@pytest.mark.skipif(not WITH_RAY, reason="Ray is not installed: pip install 'plimsoll-jax[ray]'")
def test_a_local_ray_makes_the_folder_that_threads_make(made, whole, tmp_path):
    build(made, tmp_path / "packed", ray="local", workers=2)
    assert content(tmp_path / "packed") == content(whole)


@pytest.mark.skipif(WITH_RAY, reason="Ray is installed: nothing is to be refused")
def test_without_the_package_it_is_named(made, tmp_path):
    with pytest.raises(PlimsollError, match=r"--ray needs the package ray.*pip install ray"):
        build(made, tmp_path / "packed", ray="local")
    assert not (tmp_path / "packed").exists()
