"""`plimsoll inspect` of a packed folder, as it is typed."""

import json

import numpy as np
import pytest

from packed_files import write_packed
from plimsoll.cli.main import main
from plimsoll.files.folder import partial_of


def typed(capsys, *words, code=0):
    assert main(["inspect", *map(str, words)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.fixture
def folder(tmp_path, byte_tokenizer):
    """Documents of 3, 11 and 1 tokens, end-of-text included."""
    tokens = [*b"ab", 256, *b"0123456789", 256, 256]
    byte_tokenizer.save(tmp_path / "tokenizer.json")
    content = (tmp_path / "tokenizer.json").read_bytes()
    return write_packed(
        tmp_path / "packed", tokens, validation=[*b"xyz", 256], vocab_size=257, characters=15, tokenizer=content
    )


def test_a_packed_folder_is_described(folder, byte_tokenizer, capsys):
    found = json.loads(typed(capsys, folder, "--json"))
    assert (found["tokens"], found["documents"], found["validation_tokens"]) == (15, 3, 4)
    assert found["document_tokens"] == 5.0
    assert found["held_out_share"] == 4 / 19
    assert (found["vocab_size"], found["tokenizer_vocab_size"]) == (257, 257)
    assert found["sample"] == byte_tokenizer.decode(np.array([*b"ab", 256, *b"0123456789", 256, 256]))
    assert found["bytes"] == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    in_words = typed(capsys, folder)
    for figure in ("15 tokens of 3 documents", "4 tokens (21.1 %)", "257 ids", "0.79 characters a token"):
        assert figure in in_words


def test_what_is_cut_short_or_unfinished_is_refused(folder, capsys):
    (folder / "shard_00000/tokens.bin").write_bytes(b"\0" * 29)
    assert "tokens.bin ends before token 15" in typed(capsys, folder, code=2)
    folder.rename(partial_of(folder))
    assert "is not finished" in typed(capsys, folder, code=2)
