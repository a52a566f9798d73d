"""Text tokenised once into the cache: found by content, made once, continued after a stop, made again where damaged."""

import os
import threading

import numpy as np
import pytest

from plimsoll.data.disk import locked
from plimsoll.data.packed import kept as module
from plimsoll.data.packed.kept import kept, tokenised
from plimsoll.data.text.loader import load_tokens
from plimsoll.data.text.opening import open_documents, worth_keeping
from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.errors import DataError, StoppedError
from plimsoll.units import MIB

TEXT = "\n\n".join(f"document {i} with {i % 7} words" for i in range(400))


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path / "a.txt"


@pytest.fixture
def made(monkeypatch):
    """How often tokens were made."""
    make, calls = module._make, []

    def counted(folder, *others):
        calls.append(folder.name)
        make(folder, *others)

    monkeypatch.setattr(module, "_make", counted)
    return calls


def unheard(words):
    pass


def test_the_ids_are_those_of_the_stream_and_are_made_once(text, byte_tokenizer, made):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    ids = load_tokens(open_documents(str(text)), byte_tokenizer)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens + 1), ids)
    copy = text.with_name("elsewhere") / "a.txt"
    copy.parent.mkdir()
    copy.write_text(TEXT)
    os.utime(copy, (1, 1))
    again = tokenised(open_documents(str(copy)), byte_tokenizer, pytest.fail)
    assert again == packed
    assert kept(packed.folder.name, pytest.fail) == packed
    assert made == [packed.folder.name]
    assert {entry.name for entry in packed.folder.parent.iterdir()} == {packed.folder.name}


@pytest.mark.parametrize("what", ["a letter", "a name", "another tokenizer", "fewer documents", "format"])
def test_whatever_the_ids_follow_from_makes_others(text, byte_tokenizer, made, tmp_path, what):
    tokenizer, options = byte_tokenizer, {}
    tokenised(open_documents(str(text.parent)), tokenizer, unheard)
    if what == "a letter":
        text.write_text(TEXT.replace("with 3", "with 4", 1))
    if what == "a name":
        text.rename(tmp_path / "b.txt")
    if what == "format":
        text.rename(tmp_path / "b.text")
    if what == "fewer documents":
        options = {"max_examples": 30}
    if what == "another tokenizer":
        content = byte_tokenizer.to_json().replace('"a":', '"X":').replace('"b":', '"a":').replace('"X":', '"b":')
        (tmp_path / "other").mkdir()
        (tmp_path / "other/tokenizer.json").write_text(content)
        tokenizer = load_tokenizer(tmp_path / "other")
        (tmp_path / "other/tokenizer.json").unlink()
    documents = open_documents(str(tmp_path), **options)
    packed = tokenised(documents, tokenizer, unheard)
    assert len(set(made)) == 2
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens), load_tokens(documents, tokenizer))


def test_of_a_text_too_large_to_be_read_whole_the_time_of_writing_counts(text, byte_tokenizer, made, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_BYTES", len(TEXT) - 1)
    for written in (1, 2, 1):
        os.utime(text, (written, written))
        tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert len(made) == 2


def test_what_was_interrupted_is_continued(text, byte_tokenizer, monkeypatch):
    monkeypatch.setattr("plimsoll.data.packed.encoding.BLOCK", 1000)
    monkeypatch.setattr("plimsoll.data.packed.prepare.MARK_SECONDS", 0.0)

    def interrupt(words):
        if "%" in words and int(words.rpartition(" ")[2][:-1]) > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenised(open_documents(str(text)), byte_tokenizer, interrupt)
    documents = open_documents(str(text))
    begun = []
    pieces = documents.pieces
    monkeypatch.setattr(documents, "pieces", lambda position=None: begun.append(position) or pieces(position))
    packed = tokenised(documents, byte_tokenizer, unheard)
    assert begun[0]["documents"] > 50
    ids = load_tokens(open_documents(str(text)), byte_tokenizer)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens + 1), ids)


@pytest.mark.parametrize("what", ["progress.json", "tokens.bin", "tokenizer.json", "others.txt"])
def test_what_was_interrupted_and_is_damaged_is_made_again_and_it_is_said(text, byte_tokenizer, monkeypatch, what):
    monkeypatch.setattr("plimsoll.data.packed.encoding.BLOCK", 1000)
    monkeypatch.setattr("plimsoll.data.packed.prepare.MARK_SECONDS", 0.0)

    def interrupt(words):
        if "%" in words and int(words.rpartition(" ")[2][:-1]) > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenised(open_documents(str(text)), byte_tokenizer, interrupt)
    (folder,) = (path for path in (text.parent / "cache/tokens").iterdir() if path.is_dir())
    (folder / what).write_text("{")
    said = []
    packed = tokenised(open_documents(str(text)), byte_tokenizer, said.append)
    assert "cannot be continued, and is made again" in said[1]
    ids = load_tokens(open_documents(str(text)), byte_tokenizer)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens + 1), ids)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_second_process_waits_for_the_first_and_makes_nothing(text, byte_tokenizer, made):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    finished = (packed.folder / "meta.json").read_bytes()
    (packed.folder / "meta.json").unlink()  # the first one is about to write it
    first = locked(packed.folder.with_name(f"{packed.folder.name}.made"))
    waits = threading.Event()
    said, results = [], []

    def say(words):
        said.append(words)
        waits.set()

    second = threading.Thread(target=lambda: results.append(tokenised(open_documents(str(text)), byte_tokenizer, say)))
    second.start()
    assert waits.wait(20)
    (packed.folder / "meta.json").write_bytes(finished)
    first.close()
    second.join(20)
    assert results == [packed]
    assert said == ["tokens: another process makes them: waiting"]
    assert len(made) == 1


def test_damaged_tokens_are_made_again_and_it_is_said(text, byte_tokenizer, made):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    os.truncate(packed.folder / "tokens.bin", 100)
    said = []
    assert kept(packed.folder.name, said.append) is None
    assert "was cut short" in said[0]
    assert tokenised(open_documents(str(text)), byte_tokenizer, said.append) == packed
    assert len(made) == 2
    assert (packed.folder / "tokens.bin").stat().st_size == 2 * packed.tokens


def test_a_text_that_changes_meanwhile_is_refused_and_leaves_nothing(text, byte_tokenizer, monkeypatch):
    fill = module.fill

    def changed(*options):
        fill(*options)
        text.write_text(TEXT.replace("with 3", "with 4", 1))

    monkeypatch.setattr(module, "fill", changed)
    with pytest.raises(DataError, match="changed while it was tokenised"):
        tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert not list((text.parent / "cache/tokens").iterdir())


def test_a_full_disk_is_one_paragraph_and_what_was_marked_is_continued(text, byte_tokenizer, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr("plimsoll.data.packed.writer.free_bytes", lambda path: 0)
        with pytest.raises(StoppedError, match="the disk is full") as refusal:
            tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert "\n" not in str(refusal.value)
    assert str(text.parent / "cache") in str(refusal.value)
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert packed.tokens == len(load_tokens(open_documents(str(text)), byte_tokenizer))


def test_a_text_is_kept_where_a_run_reads_all_of_it_and_not_where_it_is_very_large(tmp_path):
    (tmp_path / "a.txt").write_text("four" * 1000)
    documents = open_documents(str(tmp_path / "a.txt"))
    assert worth_keeping(documents, tokens=None)
    assert worth_keeping(documents, tokens=1000)
    assert not worth_keeping(documents, tokens=999)
    os.truncate(tmp_path / "a.txt", 4096 * MIB)  # sparse: nothing is written
    assert worth_keeping(documents, tokens=None)
    os.truncate(tmp_path / "a.txt", 4096 * MIB + 1)
    assert not worth_keeping(documents, tokens=None)
    documents.paths = None
    assert not worth_keeping(documents, tokens=None)
