"""`plimsoll inspect` of a packed folder, as it is typed."""

import json

import numpy as np
import pytest

from packed_files import write_packed
from plimsoll.cli.main import main
from plimsoll.data.packed import packed


def typed(capsys, *words, code=0):
    assert main(["inspect", *map(str, words)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    """Documents of 3, 11 and 1 tokens, end-of-text included."""
    tokens = [*b"ab", 256, *b"0123456789", 256, 256]
    folder = write_packed(tmp_path / "packed", tokens, validation=[*b"xyz", 256], vocab_size=257, characters=15)
    byte_tokenizer.save(folder / "tokenizer.json")
    return folder


def test_a_packed_folder_is_described(folder, byte_tokenizer, capsys):
    found = json.loads(typed(capsys, folder, "--json"))
    assert (found["tokens"], found["documents"], found["validation_tokens"]) == (15, 3, 4)
    assert found["document_tokens"] == {"shortest": 1, "mean": 5.0, "longest": 11}
    assert found["held_out_share"] == 4 / 19
    assert (found["vocab_size"], found["tokenizer_vocab_size"]) == (257, 257)
    assert found["sampled_tokens"] == 19
    assert (found["sampled_different_ids"], found["sampled_largest_id"]) == (13, 256)
    documents = [[*b"ab", 256], [*b"0123456789", 256], [256]]
    assert found["samples"] == [byte_tokenizer.decode(np.array(ids)) for ids in documents]
    assert found["bytes"] == sum(path.stat().st_size for path in folder.iterdir())


def test_it_is_told_in_words(folder, capsys):
    text = typed(capsys, folder)
    assert "15 tokens of 3 documents" in text
    assert "4 tokens (21.1 %) of - documents" in text
    assert "5 tokens on average, 1 at least, 11 at most" in text
    assert "257 ids, kept as uint16; end-of-text is 256; 0.79 characters a token" in text
    assert "begins" in text


@pytest.mark.parametrize("slice", [1, 2, 3, 7])
def test_lengths_do_not_depend_on_how_many_starts_are_read_at_a_time(folder, slice, monkeypatch, capsys):
    monkeypatch.setattr(packed, "SLICE", slice)
    found = json.loads(typed(capsys, folder, "--json"))
    assert found["document_tokens"] == {"shortest": 1, "mean": 5.0, "longest": 11}


def test_what_is_cut_short_or_unfinished_is_refused(folder, capsys):
    (folder / "tokens.bin").write_bytes(b"\0" * 29)
    assert "tokens.bin has 29 bytes" in typed(capsys, folder, code=2)
    (folder / "meta.json").unlink()
    assert "is not finished" in typed(capsys, folder, code=2)
