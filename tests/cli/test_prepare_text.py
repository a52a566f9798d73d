"""`plimsoll prepare longcontext`, as it is typed."""

import json

import pytest

from plimsoll.cli.main import main


def typed(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "ships.txt"
    path.write_text("\n\n".join(f"Ship {place} has loaded {place * 31 % 17} crates." for place in range(500)))
    return path


def test_a_text_is_packed_and_the_same_command_says_that_it_is_finished(texts, tmp_path, capsys):
    words = ["prepare", "longcontext", "--dataset-id", texts, "--vocab-size", "0.3k", "--out", tmp_path / "a/packed/"]
    found = json.loads(typed(capsys, *words, "--json"))
    assert {"examples", "seconds", "tokens_per_second", "bytes"} <= found.keys()
    assert found["examples"] == found["documents"] + found["validation_documents"] == 500
    assert found["vocab_size"] == 300
    assert "is finished" in typed(capsys, *words)
    text = typed(capsys, *words[:-1], tmp_path / "b", "--workers", "1")
    assert f"{found['tokens']:,} tokens of {found['documents']:,} documents" in text
    assert "ids: uint16, of a vocabulary of 300" in text


REFUSED = {
    "no text": (["--out", "x"], "plimsoll prepare longcontext needs --dataset-id"),
    "no out": (["--dataset-id", "x"], "plimsoll prepare longcontext needs --out, the folder that is made"),
    "no such text": (["--dataset-id", "x", "--out", "y"], "there is no such path: 'x'"),
    "both": (["--dataset-id", "x", "--out", "y", "--tokenizer", "t", "--vocab-size", "400"], "leave one of them out"),
    "no tokenizer": (["--dataset-id", "text.txt", "--out", "y", "--tokenizer", "t"], "there is no tokenizer at t"),
    "no workers": (["--dataset-id", "x", "--out", "y", "--workers", "0"], "--workers must be 1 or more, got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_packed_is_refused_in_a_paragraph(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a text")
    words, said = REFUSED[case]
    assert said in typed(capsys, "prepare", "longcontext", *words, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
