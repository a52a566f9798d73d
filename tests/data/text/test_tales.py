"""Tales of the demo: always the same, whole sentences, none twice."""

import re

import pytest

from plimsoll.data import TALES
from plimsoll.data.text.opening import open_documents, require_named
from plimsoll.data.text.tales import COUNT, grammar, tale
from plimsoll.errors import DataError


def test_a_number_has_one_tale_and_no_two_have_the_same():
    tales = [tale(number) for number in range(2_000)]
    assert tales[:20] == [tale(number) for number in range(20)]
    assert len(set(tales)) == len(tales)


def test_a_tale_is_of_whole_sentences_about_two_of_different_names():
    names = {*grammar()["she"], *grammar()["he"]}
    for number in range(500):
        text = tale(number)
        assert not re.search(r"[{}\n]|  ", text)
        assert re.match(r"[A-Z].*[.!?\"]$", text)
        assert len(names & {*re.findall(r"\w+", text)}) == 2


def test_every_word_and_every_sentence_is_told():
    told = "\n".join(tale(number) for number in range(3_000)).lower()
    for words in grammar()["words"].values():
        assert all(word.lower() in told for word in words)
    for plot in grammar()["plots"]:
        for beat in plot["beats"]:
            longest = [max(re.split(r"{\w+}", sentence), key=len).lower() for sentence in beat]
            assert all(part in told for part in longest)


def test_they_are_a_text_like_any_file_and_made_again_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    documents = open_documents(TALES, max_examples=3)
    first = [piece.text.strip() for piece in documents.pieces()]
    assert first == [tale(number) for number in range(3)]
    (path,) = documents.paths
    text = path.read_text()
    assert text.count("\n\n") == COUNT - 1
    path.unlink()
    assert open_documents(TALES).digest == open_documents(str(path)).digest
    assert path.read_text() == text
    assert require_named(str(path))


def test_a_cache_that_cannot_be_written_to_is_said_in_one_paragraph(tmp_path, monkeypatch):
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    monkeypatch.setattr("tempfile.mkdtemp", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(DataError, match=r"No space left.*PLIMSOLL_CACHE"):
        open_documents(TALES)
