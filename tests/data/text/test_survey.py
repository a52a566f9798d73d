"""A survey counts what a loader yields; an inspection reads the beginning only."""

import json
import os
from pathlib import Path

import pytest

from plimsoll.data.text.documents import is_held_out
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.survey import describe_text, survey
from plimsoll.data.text.windows import TokenWindows


@pytest.mark.parametrize("stride", [None, 3, 50])
def test_a_survey_counts_what_an_epoch_yields(byte_tokenizer, listed_documents, stride):
    texts = [f"document {i}" * 20 for i in range(1000)]
    train = [text for text in texts if not is_held_out(text)]
    documents = listed_documents(texts)
    counted = survey(documents, byte_tokenizer, seq_len=40, stride=stride)
    windows = TokenWindows(documents, byte_tokenizer, seq_len=40, stride=stride, epochs=1)
    assert counted.windows == sum(1 for _ in windows)
    assert counted.documents == len(train)
    assert len(texts) > len(train)
    assert counted.tokens == sum(map(len, train)) + len(train)


def test_an_inspection_is_json_and_reads_the_beginning(tmp_path):
    lines = [json.dumps({"id": i, "text": f"story {i} " * 100}) for i in range(500)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    documents = open_documents(str(tmp_path / "a.jsonl"))
    shown = json.loads(json.dumps(describe_text(documents, scan_bytes=20_000)))
    assert shown["columns"] == ["id", "text"]
    assert shown["bytes"] == (tmp_path / "a.jsonl").stat().st_size
    assert shown["scan_complete"] is False
    assert 20 <= shown["scanned_documents"] <= 25
    assert shown["mean_characters"] == pytest.approx(860, abs=10)
    assert len(shown["samples"]) == 3
    assert describe_text(documents)["scan_complete"] is True
    assert describe_text(documents)["scanned_documents"] == 500


def shared_text(name):
    root = Path(os.environ.get("PLIMSOLL_SHARED", Path(__file__).parents[3] / ".." / "shared"))
    path = root / "data" / "text" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there: set PLIMSOLL_SHARED to the folder of shared files")
    return open_documents(str(path))


@pytest.mark.parametrize(
    ("name", "documents", "how"),
    [
        ("tinystories_train.txt", 2066, "<|endoftext|> markers"),
        ("tinyshakespeare.txt", 7222, "at blank lines"),
        ("wikitext2_valid.txt", 1160, "at blank lines"),
    ],
)
def test_shared_texts_are_split_as_they_were_written(name, documents, how):
    opened = shared_text(name)
    assert how in opened.describe()
    assert sum(piece.last for piece in opened.pieces()) == documents
