"""Facts tell one set of files and options from another, in words; a copy is the same."""

import json
import shutil

import pytest

from plimsoll.errors import DataError
from plimsoll.files import facts as module
from plimsoll.files.facts import Facts, facts_of, require_same


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data/more").mkdir(parents=True)
    (tmp_path / "data/train.jsonl").write_bytes(bytes(range(200)) * 100)
    (tmp_path / "data/more/a.txt").write_text("some words")
    return tmp_path / "data"


def now(folder, **options):
    return facts_of(sorted(path for path in folder.rglob("*") if path.is_file()), **options)


def test_a_copy_has_the_same_facts_and_json_holds_them(folder, tmp_path):
    before = now(folder, seed=3, sizes=(1, 2))
    shutil.copytree(folder, tmp_path / "copy")
    assert now(tmp_path / "copy", seed=3, sizes=[1, 2]) == before
    assert Facts.from_json(json.loads(json.dumps(before.to_json()))) == before
    assert len(before.digest) == 32
    assert before.digest != now(folder, seed=4, sizes=[1, 2]).digest


def test_the_name_of_a_single_file_is_none(folder):
    before = facts_of([folder / "train.jsonl"])
    (folder / "train.jsonl").rename(folder / "b.jsonl")
    after = facts_of([folder / "b.jsonl"])
    assert (before.difference(after), before.digest) == ("", after.digest)
    (folder / "b.jsonl").write_bytes(b"a")
    assert before.difference(facts_of([folder / "b.jsonl"])) == "b.jsonl has 19,999 fewer bytes"


CHANGES = {
    "train.jsonl has 4,096 more bytes": lambda folder: extend(folder / "train.jsonl"),
    "more/a.txt has 6 fewer bytes": lambda folder: (folder / "more/a.txt").write_text("some"),
    "more/a.txt has other content": lambda folder: (folder / "more/a.txt").write_text("same words"),
    "more/a.txt is missing; more/b.txt is new": lambda folder: (folder / "more/a.txt").rename(folder / "more/b.txt"),
}


def extend(path):
    path.write_bytes(path.read_bytes() + bytes(4096))


@pytest.mark.parametrize("words", CHANGES)
@pytest.mark.parametrize("whole", [True, False])
def test_what_differs_is_told(folder, words, whole, monkeypatch):
    if not whole:
        monkeypatch.setattr(module, "WHOLE_BYTES", 100)
    before = now(folder)
    assert before.difference(now(folder)) == ""
    CHANGES[words](folder)
    assert before.difference(now(folder)) == words
    with pytest.raises(DataError, match=f"my data is not the data of this run any more: {words}. Put the old"):
        require_same("my data", before.to_json(), now(folder))


def test_options_that_differ_are_told_and_no_more_than_three():
    before, after = (Facts(options=dict.fromkeys("abcde", value)) for value in (1, "x" * 90))
    assert before.difference(after) == "; ".join([*(f"{name} was 1 and is {'x' * 60}..." for name in "abc"), "2 more"])


def test_of_large_files_64_places_are_read_from_the_first_byte_to_the_last(folder, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_BYTES", 100)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 10)
    path = folder / "train.jsonl"
    before, content = facts_of([path]), path.read_bytes()

    def is_noticed(at):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        return facts_of([path]) != before

    assert is_noticed(0)
    assert is_noticed(len(content) - 1)
    assert 0 < sum(map(is_noticed, range(0, len(content), 497))) < 10  # 640 of 20,000 bytes


def test_a_file_that_cannot_be_read_is_named(folder):
    with pytest.raises(DataError, match=r"nowhere.txt cannot be read \(No such file or directory\): put it back"):
        facts_of([folder / "nowhere.txt"])
