"""Examples encoded once into the cache: the same as one by one, found by content, made again where damaged."""

import json

import numpy as np
import pytest

from chat_files import CHATML, GEMMA, chats, turns, write_records, write_tokenizer
from plimsoll.data.chat import kept as module
from plimsoll.data.chat.encoded import NEVER
from plimsoll.data.chat.examples import read_example
from plimsoll.data.chat.kept import encoded_examples
from plimsoll.data.chat.records import open_records
from plimsoll.data.chat.tokenizer import load_chat_tokenizer
from plimsoll.data.kept import NotKept
from plimsoll.errors import DataError

COUNT = 200


def unheard(words):
    pass


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "BLOCK", 2_000)  # several blocks
    return write_records(tmp_path / "a.jsonl", chats(COUNT))


@pytest.fixture
def tokenizer(tmp_path):
    return load_chat_tokenizer(write_tokenizer(tmp_path / "tokenizer"))


def made(path, tokenizer, say=unheard, max_examples=None, **options):
    return encoded_examples(open_records(str(path), max_examples=max_examples), tokenizer, say=say, **options)


def test_documents_are_those_of_the_records_in_their_order(path, tokenizer):
    encoded = made(path, tokenizer)
    expected = {False: [], True: []}
    for record in open_records(str(path)):
        read = read_example(record, tokenizer, "assistant")
        expected[read.held_out] += tokenizer.encode([read.example])
    for side, documents in ((encoded.train, expected[False]), (encoded.validation, expected[True])):
        assert side.count == len(documents)
        assert side.tokens == sum(len(ids) for ids, _ in documents)
        assert side.learned == sum(int(flags.sum()) for _, flags in documents)
        for (ids, flags), (wanted, learned) in zip(side.read(range(side.count), 10**9), documents, strict=True):
            np.testing.assert_array_equal(ids, wanted)
            np.testing.assert_array_equal(flags, learned)
        assert side.first.tolist() == [int(np.flatnonzero(flags)[0]) for _, flags in documents]
    assert 0 < encoded.validation.count < COUNT / 25
    assert (encoded.kind, encoded.empty, encoded.day) == ("messages", 0, None)


OPTIONS = {
    "all tokens": {"loss_on": "all"},
    "fewer records": {"max_examples": 30},
    "nothing held out": {"hold_out": False},
}


@pytest.mark.parametrize("what", ["a letter", "another template", "another eos", *OPTIONS])
def test_whatever_the_ids_follow_from_makes_others(path, tokenizer, tmp_path, what):
    name, options = made(path, tokenizer).name, OPTIONS.get(what, {})
    if what == "a letter":
        path.write_text(path.read_text().replace("why", "who", 1))
    if what == "another template":
        tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "other", CHATML + " "))
    if what == "another eos":
        tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / "other", eos_token="<|im_end|>"))
    other = made(path, tokenizer, **options)
    assert other.name != name
    if what == "nothing held out":
        assert (other.train.count, other.validation.count) == (COUNT, 0)
    if what == "all tokens":
        assert other.train.learned == other.train.tokens - other.train.count


def test_copies_of_a_record_are_on_the_same_side_under_any_template(tmp_path, path):
    sides = []
    users = [{"messages": turns(f"{i}?", f"{i}!")} for i in range(COUNT)]
    for number, template in enumerate((CHATML, GEMMA)):
        tokenizer = load_chat_tokenizer(write_tokenizer(tmp_path / str(number), template))
        encoded = made(write_records(path, users + users), tokenizer)
        texts = [
            tokenizer.decode(ids[flags]) for ids, flags in encoded.validation.read(range(encoded.validation.count), 999)
        ]
        assert sorted(texts) == sorted(texts[: len(texts) // 2] * 2)
        sides.append([text.split("<")[0] for text in texts])
    assert sides[0] == sides[1] != []


def test_a_document_that_nobody_answers_is_kept_and_has_nothing_to_learn(path, tokenizer):
    encoded = made(write_records(path, [{"messages": turns("a")}, {"messages": turns("a", "b")}]), tokenizer)
    assert encoded.train.first[0] == NEVER
    assert encoded.train.first[1] < NEVER


def test_empty_texts_are_counted_and_in_no_document(path, tokenizer):
    said = []
    encoded = made(write_records(path, [{"text": "a"}, {"text": " \n"}, {"text": "b"}]), tokenizer, say=said.append)
    assert (encoded.train.count, encoded.empty) == (2, 1)
    assert said[-1].endswith("tokens of 2 documents, 0 more for validation; 1 records are empty")


def test_a_file_that_changes_meanwhile_is_refused(path, tokenizer, monkeypatch):
    make = module._make

    def changed(*arguments, **options):
        path.write_text(path.read_text() + json.dumps({"messages": turns("a", "b")}))
        return make(*arguments, **options)

    monkeypatch.setattr(module, "_make", changed)
    with pytest.raises(DataError, match=r"a\.jsonl changed while it was read, a\.jsonl has \d+ more bytes"):
        made(path, tokenizer)
    assert not list(path.parent.glob("cache/tokens/*"))


def test_little_room_is_said_and_nothing_is_left(path, tokenizer, monkeypatch):
    monkeypatch.setattr("plimsoll.data.kept.free_bytes", lambda folder: 5 * 2**20)
    with pytest.raises(NotKept, match=r"5\.0 MiB are free.*PLIMSOLL_CACHE"):
        made(path, tokenizer)
    assert not list(path.parent.glob("cache/tokens/*"))


def test_a_folder_that_is_shortened_while_it_is_read_is_refused(path, tokenizer):
    encoded = made(path, tokenizer)
    with open(encoded.folder / "train.learned.bin", "r+b") as file:
        file.truncate(10)
    with pytest.raises(DataError, match="was changed while it was read"):
        encoded.train.read([5], 999)


def test_the_day_that_a_template_was_told_is_kept(path, tmp_path):
    folder = write_tokenizer(tmp_path / "tokenizer", "{{ strftime_now('%d') }}" + CHATML)
    encoded = [made(path, load_chat_tokenizer(folder, day=f"2026-03-{day:02}")) for day in (4, 5, 4)]
    assert [each.day for each in encoded] == ["2026-03-04", "2026-03-05", "2026-03-04"]
    assert encoded[0] == encoded[2]
    assert encoded[0].name != encoded[1].name
