"""Text tokenised once into the cache: found by content, made once, continued after a stop, made again where damaged."""

import errno
import hashlib
import os

import numpy as np
import pytest
from tokenizers import Tokenizer

from emptying import together
from plimsoll.data.kept import NotKept, kept
from plimsoll.data.packed import kept as module
from plimsoll.data.packed import shards
from plimsoll.data.packed.kept import tokenised
from plimsoll.data.text.loader import load_tokens
from plimsoll.data.text.opening import open_documents, worth_keeping
from plimsoll.data.text.survey import collect_held_out
from plimsoll.data.text.tokenizer import TextTokenizer
from plimsoll.errors import DataError
from plimsoll.files import facts
from plimsoll.processes import cache
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
    pack, calls = module.pack, []

    def counted(folder, *others):
        calls.append(folder.stem)
        return pack(folder, *others)

    monkeypatch.setattr(module, "pack", counted)
    return calls


def unheard(words):
    pass


def tokens_of(text, tokenizer):
    return tokenised(open_documents(str(text)), tokenizer, unheard)


def test_the_ids_are_those_of_the_stream_and_are_made_once(text, byte_tokenizer, made):
    packed = tokens_of(text, byte_tokenizer)
    ids = load_tokens(open_documents(str(text)), byte_tokenizer)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens + 1), ids)
    copy = text.with_name("elsewhere") / "a.txt"
    copy.parent.mkdir()
    copy.write_text(TEXT)
    os.utime(copy, (1, 1))
    again = tokenised(open_documents(str(copy)), byte_tokenizer, pytest.fail)
    assert again == packed
    assert kept(packed.folder.name) == packed.folder
    assert made == [packed.folder.name]
    assert {entry.name for entry in packed.folder.parent.iterdir()} == {packed.folder.name}


def test_the_tokens_to_evaluate_on_are_those_of_the_text(text, byte_tokenizer):
    packed = tokens_of(text, byte_tokenizer)
    every = collect_held_out(open_documents(str(text)), byte_tokenizer, seq_len=8)
    assert len(every) == packed.validation_tokens > 20
    for limits in ({"max_tokens": 10**6}, {"max_tokens": 20}, {"max_tokens": 0}):
        held_out = collect_held_out(open_documents(str(text)), byte_tokenizer, seq_len=8, **limits)
        np.testing.assert_array_equal(packed.held_out(seq_len=8, **limits), held_out)
        assert packed.held_out(seq_len=8, **limits).dtype == held_out.dtype
    assert not len(packed.held_out(seq_len=len(every), max_tokens=10**6))


@pytest.mark.parametrize("what", ["a letter", "another file", "another tokenizer", "fewer documents"])
def test_whatever_the_ids_follow_from_makes_others(text, byte_tokenizer, made, tmp_path, what):
    tokenizer, options = byte_tokenizer, {}
    tokenised(open_documents(str(text.parent)), tokenizer, unheard)
    if what == "a letter":
        text.write_text(TEXT.replace("with 3", "with 4", 1))
    if what == "another file":
        (tmp_path / "b.txt").write_text("a")
    if what == "fewer documents":
        options = {"max_examples": 30}
    if what == "another tokenizer":
        content = byte_tokenizer.to_json().replace('"a":', '"X":').replace('"b":', '"a":').replace('"X":', '"b":')
        tokenizer = TextTokenizer(Tokenizer.from_str(content))
    documents = open_documents(str(tmp_path), **options)
    packed = tokenised(documents, tokenizer, unheard)
    assert len(set(made)) == 2
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens), load_tokens(documents, tokenizer))


def test_of_a_text_too_large_to_be_read_whole_the_time_of_writing_counts(text, byte_tokenizer, made, monkeypatch):
    monkeypatch.setattr(facts, "WHOLE_BYTES", len(TEXT) - 1)
    for written in (1, 2, 1):
        os.utime(text, (written, written))
        tokens_of(text, byte_tokenizer)
    assert len(made) == 2


def test_what_was_interrupted_is_continued(text, byte_tokenizer, monkeypatch):
    monkeypatch.setattr("plimsoll.data.packed.encoding.BLOCK", 1000)
    monkeypatch.setattr(shards, "SHARD_BYTES", 5000)
    monkeypatch.setattr(shards, "PROGRESS_SECONDS", 0.0)

    def interrupt(words):
        if "%" in words and int(words.rpartition(" ")[2][:-1]) > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenised(open_documents(str(text)), byte_tokenizer, interrupt)
    documents = open_documents(str(text))
    begun = []
    pieces = documents.pieces
    monkeypatch.setattr(documents, "pieces", lambda position=None: begun.append(position) or pieces(position))
    packed = tokenised(documents, byte_tokenizer, unheard)
    assert begun[-1]["documents"] > 50
    ids = load_tokens(open_documents(str(text)), byte_tokenizer)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens + 1), ids)


def test_damaged_tokens_are_made_again_and_it_is_said(text, byte_tokenizer, made):
    """By an id that every vocabulary has, and whose file has the size and the time that it had."""
    packed = tokens_of(text, byte_tokenizer)
    files = {path: path.read_bytes() for path in packed.folder.rglob("*") if path.is_file()}
    path = packed.folder / "shard_00000/tokens.bin"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    content = bytearray(files[path])
    content[-4] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=times)
    assert kept(packed.folder.name) is None
    assert packed.folder.exists()  # another process may be about to finish it: only who has its lock removes it
    said = []
    assert tokenised(open_documents(str(text)), byte_tokenizer, said.append) == packed
    assert said[0].startswith(f"tokens: {packed.folder} is damaged and made again (")
    assert len(made) == 2
    assert {path: path.read_bytes() for path in packed.folder.rglob("*") if path.is_file()} == files


def test_use_is_noted_where_the_limit_of_the_cache_looks(text, byte_tokenizer):
    packed = tokens_of(text, byte_tokenizer)
    os.utime(packed.folder, (1, 1))
    (entry,) = cache.entries(text.parent / "cache")
    assert entry.used_ns == 10**9
    assert kept(packed.folder.name) == packed.folder
    (entry,) = cache.entries(text.parent / "cache")
    assert entry.used_ns > 10**18
    assert entry.size_bytes == sum(path.stat().st_size for path in packed.folder.rglob("*.*"))


def test_a_text_that_changes_meanwhile_is_refused_and_leaves_nothing(text, byte_tokenizer, monkeypatch):
    run = shards.Packing.run

    def changed(packing):
        run(packing)
        text.write_text(TEXT.replace("with 3", "with 4", 1))

    monkeypatch.setattr(shards.Packing, "run", changed)
    with pytest.raises(DataError, match=r"changed while it was tokenised, a.txt has other content"):
        tokens_of(text, byte_tokenizer)
    assert not list((text.parent / "cache/tokens").iterdir())


def test_processes_at_once_tokenise_a_text_that_another_one_removes(text, byte_tokenizer, tmp_path):
    """However often it is removed and made again, who opened it has all of it, and nothing is left half made."""
    byte_tokenizer.save(tmp_path / "tokenizer.json")
    expected = load_tokens(open_documents(str(text)), byte_tokenizer)
    program = """
    import hashlib, json, os
    from plimsoll.data.packed.kept import tokenised
    from plimsoll.data.text.opening import open_documents
    from plimsoll.data.text.tokenizer import load_tokenizer

    arguments, read = json.loads(os.environ["ARGUMENTS"]), 0
    tokenizer = load_tokenizer(arguments["tokenizer"])
    for _ in range(60):
        packed = tokenised(open_documents(arguments["text"]), tokenizer, lambda words: None)
        try:
            file = open(packed.folder / "shard_00000/tokens.bin", "rb")
        except FileNotFoundError:  # removed since: the limit removes nothing so soon, only a user does
            continue
        with file:
            assert hashlib.sha256(file.read()).hexdigest() == arguments["expected"]
        read += 1
        if read == 3:
            break
    print(read)
    """
    digest = hashlib.sha256(expected.astype("<u2").tobytes()).hexdigest()
    emptied, printed = together(
        tmp_path / "cache", program, text=str(text), tokenizer=str(tmp_path / "tokenizer.json"), expected=digest
    )
    assert emptied > 0
    assert all(int(read) > 0 for read in printed)
    assert {path.suffix for path in (tmp_path / "cache/tokens").iterdir()} <= {"", ".lock"}
    packed = tokens_of(text, byte_tokenizer)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens), expected[: packed.tokens])


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_a_full_disk_is_one_paragraph_and_nothing_is_left_on_it(text, byte_tokenizer, monkeypatch, full):
    def fails(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    changes = {
        "before": ("plimsoll.data.kept.free_bytes", lambda path: 0),
        "meanwhile": ("plimsoll.data.packed.shards.Shard.add", fails),
    }
    with monkeypatch.context() as changed:
        changed.setattr(*changes[full])
        with pytest.raises(NotKept) as refusal:
            tokens_of(text, byte_tokenizer)
    assert "\n" not in str(refusal.value)
    assert str(text.parent / "cache") in str(refusal.value)
    assert "PLIMSOLL_CACHE names another folder" in str(refusal.value)
    assert not list((text.parent / "cache/tokens").iterdir())
    packed = tokens_of(text, byte_tokenizer)
    assert packed.tokens == len(load_tokens(open_documents(str(text)), byte_tokenizer))


def test_a_text_above_the_limit_of_the_cache_is_not_made(text, byte_tokenizer, monkeypatch, made):
    monkeypatch.setattr(cache, "limit_bytes", lambda: 1_000)
    with pytest.raises(
        NotKept, match=r"takes \d\.\d KiB of ids or more, and the cache may have 1000 B \(PLIMSOLL_CACHE_L"
    ):
        tokens_of(text, byte_tokenizer)
    assert made == []


@pytest.mark.parametrize("what", ["cache", "cache/tokens"])
def test_a_folder_that_cannot_be_written_to_is_one_paragraph(text, byte_tokenizer, what):
    place = text.parent / what
    place.parent.mkdir(exist_ok=True)
    place.write_text("a file")
    with pytest.raises(NotKept, match=r"the cache folder .* cannot be") as refusal:
        tokens_of(text, byte_tokenizer)
    assert "\n" not in str(refusal.value)


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
