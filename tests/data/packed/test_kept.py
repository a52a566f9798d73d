"""Text tokenised once into the cache: found by content, made once, continued after a stop, made again where damaged."""

import errno
import hashlib
import os
import shutil
import threading

import numpy as np
import pytest

from emptying import together
from plimsoll import cache
from plimsoll.data import unchanged
from plimsoll.data.disk import locked
from plimsoll.data.packed import kept as module
from plimsoll.data.packed.kept import NotKept, kept, tokenised
from plimsoll.data.text.loader import load_tokens
from plimsoll.data.text.opening import open_documents, worth_keeping
from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.errors import DataError
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
        calls.append(folder.stem)
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
    assert kept(packed.folder.name) == packed
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
    assert [path.name for path in folder.parent.iterdir()] == [folder.stem]


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


def damaged(packed, what):
    """Damages a finished text, and sets the times of what it changes back as far as a program can."""
    path = packed.folder / (what if "." in what else "tokens.bin")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    if what == "cut short":
        os.truncate(path, 100)
    elif what == "no digests":
        (packed.folder / "checked.json").unlink()
    elif what == "digests":
        (packed.folder / "checked.json").write_text("[1]")
    else:  # an id that every vocabulary has, where no sample of it is taken
        content = bytearray(path.read_bytes())
        content[-4] ^= 1
        path.write_bytes(content)
    os.utime(path, ns=times)


@pytest.mark.parametrize(
    "what", ["cut short", "no digests", "digests", "tokens.bin", "validation.bin", "documents.npy"]
)
def test_damaged_tokens_are_made_again_and_it_is_said(text, byte_tokenizer, made, what):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    files = {path.name: path.read_bytes() for path in packed.folder.iterdir() if path.name != "checked.json"}
    damaged(packed, what)
    assert kept(packed.folder.name) is None
    assert packed.folder.exists()  # another process may be about to finish it: only who has its lock removes it
    said = []
    assert tokenised(open_documents(str(text)), byte_tokenizer, said.append) == packed
    assert said[0].startswith("tokens: those in the cache are damaged and made again (")
    assert len(made) == 2
    assert {path.name: path.read_bytes() for path in packed.folder.iterdir() if path.name != "checked.json"} == files


def test_files_that_were_only_copied_are_read_once_and_kept(text, byte_tokenizer, made, monkeypatch):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    elsewhere = packed.folder.with_name("elsewhere")
    packed.folder.rename(elsewhere)
    shutil.copytree(elsewhere, packed.folder)
    read, digest = [], unchanged._digest
    monkeypatch.setattr(unchanged, "_digest", lambda path: read.append(path.name) or digest(path))
    for _ in range(2):
        assert kept(packed.folder.name) == packed
    assert sorted(read) == ["documents.npy", "tokens.bin", "validation.bin"]


def test_use_is_noted_where_the_limit_of_the_cache_looks(text, byte_tokenizer):
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    os.utime(packed.folder, (1, 1))
    (entry,) = cache.entries(text.parent / "cache")
    assert entry.used_ns == 10**9
    assert kept(packed.folder.name) == packed
    (entry,) = cache.entries(text.parent / "cache")
    assert entry.used_ns > 10**18
    assert entry.size_bytes == sum(path.stat().st_size for path in packed.folder.iterdir())


def test_a_text_that_changes_meanwhile_is_refused_and_leaves_nothing(text, byte_tokenizer, monkeypatch):
    fill = module.fill

    def changed(*options):
        fill(*options)
        text.write_text(TEXT.replace("with 3", "with 4", 1))

    monkeypatch.setattr(module, "fill", changed)
    with pytest.raises(DataError, match="changed while it was tokenised"):
        tokenised(open_documents(str(text)), byte_tokenizer, unheard)
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
    for _ in range(20):
        packed = tokenised(open_documents(arguments["text"]), tokenizer, lambda words: None)
        try:
            file = open(packed.folder / "tokens.bin", "rb")
        except FileNotFoundError:  # removed since: the limit removes nothing so soon, only a user does
            continue
        with file:
            assert hashlib.sha256(file.read()).hexdigest() == arguments["expected"]
        read += 1
    print(read)
    """
    digest = hashlib.sha256(expected.astype("<u2").tobytes()).hexdigest()
    emptied, printed = together(
        tmp_path / "cache", program, text=str(text), tokenizer=str(tmp_path / "tokenizer.json"), expected=digest
    )
    assert emptied > 0
    assert all(int(read) > 0 for read in printed)
    assert {path.suffix for path in (tmp_path / "cache/tokens").iterdir()} <= {"", ".lock"}
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    np.testing.assert_array_equal(packed.read("tokens.bin", 0, packed.tokens), expected[: packed.tokens])


@pytest.mark.parametrize("full", ["before", "meanwhile", "meanwhile, by the system"])
def test_a_full_disk_is_one_paragraph_and_nothing_is_left_on_it(text, byte_tokenizer, monkeypatch, full):
    module_of = {"before": "kept", "meanwhile": "writer", "meanwhile, by the system": "writer.TextFolder"}
    name = "mark" if "system" in full else "free_bytes"

    def fails(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as changed:
        changed.setattr(f"plimsoll.data.packed.{module_of[full]}.{name}", fails if "system" in full else lambda path: 0)
        with pytest.raises(NotKept) as refusal:
            tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert "\n" not in str(refusal.value)
    assert str(text.parent / "cache") in str(refusal.value)
    assert "PLIMSOLL_CACHE names another folder" in str(refusal.value)
    assert not list((text.parent / "cache/tokens").iterdir())
    packed = tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert packed.tokens == len(load_tokens(open_documents(str(text)), byte_tokenizer))


def test_a_text_above_the_limit_of_the_cache_is_not_made(text, byte_tokenizer, monkeypatch, made):
    monkeypatch.setattr(cache, "limit_bytes", lambda: 10_000)
    with pytest.raises(
        NotKept, match=r"takes about 1\d\.\d KiB of ids, and the cache may have 9\.8 KiB \(PLIMSOLL_CACHE_L"
    ):
        tokenised(open_documents(str(text)), byte_tokenizer, unheard)
    assert made == []


@pytest.mark.parametrize("what", ["cache", "cache/tokens"])
def test_a_folder_that_cannot_be_written_to_is_one_paragraph(text, byte_tokenizer, what):
    (text.parent / what).parent.mkdir(exist_ok=True)
    (text.parent / what).write_text("a file")
    with pytest.raises(NotKept, match=r"the cache folder .* cannot be") as refusal:
        tokenised(open_documents(str(text)), byte_tokenizer, unheard)
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
