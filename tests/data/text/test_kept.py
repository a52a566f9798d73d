"""A tokenizer trained once for a text: found by content, trained again where anything it follows from differs."""

import os
import shutil

import pytest

from plimsoll.data.text import kept
from plimsoll.data.text.kept import trained_tokenizer
from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.tokenizer import train_byte_bpe

TEXT = "\n\n".join(f"document {i} with {i % 7} words" for i in range(200))


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path / "a.txt"


@pytest.fixture
def trained(monkeypatch):
    """Vocabularies that were trained."""
    sizes = []

    def counted(documents, size):
        sizes.append(size)
        return train_byte_bpe(documents, size)

    monkeypatch.setattr(kept, "train_byte_bpe", counted)
    return sizes


def tokenizer_of(text, size=300, **options):
    return trained_tokenizer(open_documents(str(text), **options), size, lambda words: None)


def test_the_same_text_anywhere_has_the_tokenizer_that_was_trained_on_it(text, trained, tmp_path):
    first = tokenizer_of(text)
    copy = tmp_path / "elsewhere" / "a.txt"
    copy.parent.mkdir()
    shutil.copy(text, copy)
    os.utime(copy, (1, 1))
    again = tokenizer_of(copy)
    assert trained == [300]
    assert again.to_json() == first.to_json()
    assert again.end_of_text == first.end_of_text
    assert again.size == first.size == train_byte_bpe(open_documents(str(text)), 300).size


@pytest.mark.parametrize("difference", ["a letter", "another size", "fewer documents"])
def test_another_text_or_size_has_another(text, trained, difference):
    tokenizer_of(text)
    size, options = 300, {}
    if difference == "a letter":
        text.write_text(TEXT.replace("words", "wards", 1))
    elif difference == "another size":
        size = 301
    else:
        options = {"max_examples": 100}
    tokenizer_of(text, size, **options)
    assert trained == [300, size]


def test_a_damaged_one_is_trained_again(text, trained, tmp_path):
    first = tokenizer_of(text).to_json()
    (file,) = (tmp_path / "cache").rglob(kept.TOKENIZER)
    file.write_text(first.replace("0", "1", 1))
    assert tokenizer_of(text).to_json() == first
    assert trained == [300, 300]


def test_a_cache_that_cannot_take_it_costs_the_training_alone(text, trained, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "file" / "cache"))
    assert tokenizer_of(text).size == 300
    assert trained == [300]
