"""A survey counts what a loader yields; an inspection reads the beginning only."""

import dataclasses
import itertools
import json
from unittest import mock

import pytest

from plimsoll.data.hub import HubStream
from plimsoll.data.packed import encoding
from plimsoll.data.text.documents import is_held_out
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.survey import Survey, collect_held_out, count_windows, describe_text, expected_counts, survey
from plimsoll.data.text.windows import TokenWindows


@pytest.mark.parametrize("stride", [None, 3, 50])
def test_a_survey_counts_what_an_epoch_yields(byte_tokenizer, listed_documents, stride):
    texts = [f"document {i}" * 20 for i in range(1000)]
    train = [text for text in texts if not is_held_out(text)]
    documents = listed_documents(texts)
    counted = survey(documents, byte_tokenizer, seq_len=40, stride=stride)
    windows = iter(TokenWindows(documents, byte_tokenizer, seq_len=40, stride=stride))
    of_epoch = list(itertools.islice(windows, counted.windows))
    assert windows.get_state()["windows"] == len(of_epoch)
    next(windows)
    assert windows.get_state()["epoch"] == 1
    assert counted.documents == len(train)
    assert len(texts) > len(train)
    assert counted.tokens == sum(map(len, train)) + len(train)


def test_an_inspection_is_json_and_reads_the_beginning(tmp_path):
    lines = [json.dumps({"id": i, "text": f"story {i} " * 100}) for i in range(500)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    documents = open_documents(str(tmp_path / "a.jsonl"))
    shown = json.loads(json.dumps(describe_text(documents, scan_bytes=20_000)))
    assert (shown["columns"], shown["scan_complete"]) == (["id", "text"], False)
    assert shown["bytes"] == (tmp_path / "a.jsonl").stat().st_size
    assert 20 <= shown["scanned_documents"] <= 25
    assert shown["mean_characters"] == pytest.approx(860, abs=10)


@pytest.mark.parametrize(
    ("name", "documents", "how"),
    [("tinystories_train.txt", 2066, "<|endoftext|> markers"), ("wikitext2_valid.txt", 1160, "at blank lines")],
)
def test_shared_texts_are_split_as_they_were_written(shared, name, documents, how):
    opened = open_documents(str(shared / "data/text" / name))
    assert how in opened.describe()
    assert sum(piece.last for piece in opened.pieces()) == documents


@pytest.mark.parametrize(
    ("tokens", "seq_len", "stride", "windows"),
    [(0, 4, 4, 0), (4, 4, 4, 0), (5, 4, 4, 1), (8, 4, 4, 1), (9, 4, 4, 2), (9, 4, 1, 5), (10, 4, 2, 3), (3, 40, 1, 0)],
)
def test_windows_of_a_stream_by_hand(tokens, seq_len, stride, windows):
    assert count_windows(tokens, seq_len=seq_len, stride=stride) == windows


HELD = next(text for text in (f"held {n}" for n in range(10_000)) if is_held_out(text))


def test_a_survey_encodes_so_many_characters_at_a_time_and_none_of_validation(
    byte_tokenizer, listed_documents, monkeypatch
):
    """Documents of 2, 4, 3, 1 and 5 characters, at least 5 at a time: 6, then 4 and what is left."""
    monkeypatch.setattr(encoding, "BLOCK", 5)
    texts = ["aa", HELD, "bbbb", "ccc", "d", "eeeee"]
    assert [is_held_out(text) for text in texts] == [text == HELD for text in texts]
    with mock.patch.object(byte_tokenizer, "encode_each", wraps=byte_tokenizer.encode_each) as encode:
        found = survey(listed_documents(texts), byte_tokenizer, seq_len=4, stride=2)
    seen = sorted(call.args[0] for call in encode.call_args_list)
    assert seen == [["aa", "bbbb"], ["ccc", "d", "eeeee"]]
    assert (found.documents, found.tokens, found.windows) == (5, 15 + 5, (20 - 5) // 2 + 1)
    assert survey(listed_documents(texts), byte_tokenizer, seq_len=4).windows == (20 - 5) // 4 + 1


def test_an_inspection_by_hand(listed_documents):
    """Two characters, those of a held-out one, 300, and 5: the first three are shown, 200 characters of each."""
    found = describe_text(listed_documents(["aa", HELD, "b" * 300, "eeeee"]))
    read = 2 + len(HELD) + 300 + 5
    assert found == {
        "name": "a list", "description": "lists", "files": 1, "bytes": None, "columns": None,
        "scanned_characters": read, "scanned_documents": 4, "scanned_held_out_documents": 1, "scan_complete": True,
        "mean_characters": round(read / 4), "longest_characters": 300, "samples": ["aa", HELD, "b" * 200],
    }  # fmt: skip


def test_held_out_tokens_are_those_documents_each_with_its_end(byte_tokenizer, listed_documents):
    letters = byte_tokenizer.encode_pieces(list(listed_documents([HELD]).pieces())).tolist()
    assert len(letters) == len(HELD) + 1
    documents = listed_documents(["aa", HELD, "bbbb", HELD, HELD])

    def found(**limits):
        return collect_held_out(documents, byte_tokenizer, **{"seq_len": 4} | limits).tolist()

    assert found() == letters * 3
    assert found(max_tokens=len(letters) + 2) == (letters * 2)[: len(letters) + 2]
    assert found(max_tokens=len(letters)) == letters
    assert found(scan_bytes=2) == []
    assert found(scan_bytes=2 + len(HELD)) == letters
    assert found(scan_bytes=3 + len(HELD)) == letters
    assert found(scan_bytes=6 + len(HELD) + 1) == letters * 2
    assert found(seq_len=3 * len(letters) - 1) == letters * 3
    assert found(seq_len=3 * len(letters)) == []


def test_a_data_set_says_how_many_rows_a_split_has_where_its_card_does(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a story"}\n' * 3)
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: train.jsonl\n"
        "dataset_info:\n  features:\n  - name: text\n    dtype: string\n"
        "  splits:\n  - name: train\n    num_bytes: 30\n    num_examples: 2119719\n---\n"
    )
    stream = HubStream(name=str(tmp_path), config=None, split="train", column="text")
    assert stream.count_rows() == 2_119_719
    assert dataclasses.replace(stream, split="validation").count_rows() is None


@pytest.mark.parametrize(("documents", "times"), [(1_000_000, 990), (1_000, 1)])
def test_the_beginning_of_a_stream_is_expanded_to_its_documents(documents, times):
    beginning = Survey(documents=1_000, tokens=250_000, windows=1_900)
    whole = expected_counts(beginning, documents)
    assert whole == Survey(documents=round(0.99 * documents), tokens=times * 250_000, windows=times * 1_900)
