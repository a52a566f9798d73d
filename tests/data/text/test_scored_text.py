"""Rows of scored text: every token is a label once, and nothing of one document is seen from another."""

import numpy as np
import pytest

from plimsoll.data.text.documents import Piece
from plimsoll.data.text.scored_text import scored_rows
from plimsoll.types import IGNORE

BEGIN = 99


class Letters:
    """A token for each letter."""

    def encode(self, text):
        return np.array([ord(letter) - ord("a") for letter in text], np.int32)


def pieces(*documents):
    """Each document a list of pieces."""
    return [Piece(part, {}, n == len(parts) - 1, False) for parts in documents for n, part in enumerate(parts)]


def rows(documents, *, seq_len, batch_size):
    return list(scored_rows(pieces(*documents), Letters(), begin=BEGIN, seq_len=seq_len, batch_size=batch_size))


DOCUMENTS = [["ab"], ["abcdefghij", "klmno", "p"], [""], ["xyz", ""]]


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("seq_len", [1, 3, 4, 70])
def test_every_token_is_a_label_once_after_what_stands_before_it_in_its_window(seq_len, batch_size):
    found = rows(DOCUMENTS, seq_len=seq_len, batch_size=batch_size)
    windows = []
    for inputs, labels, _, _ in found:
        assert inputs.shape == labels.shape == (batch_size, labels.shape[1])
        assert labels.shape[1] <= max(seq_len, 1)
        for given, wanted in zip(inputs, labels, strict=True):
            counted = wanted != IGNORE
            assert counted[: counted.sum()].all()  # what fills a row up stands on the right
            if counted.any():
                window = wanted[counted].tolist()
                assert given[counted].tolist() == [BEGIN, *window[:-1]]
                windows.append(window)
    texts = ["".join(parts) for parts in DOCUMENTS]
    expected = [Letters().encode(t[i : i + seq_len]).tolist() for t in texts for i in range(0, len(t), seq_len)]
    assert windows == expected
    assert sum(row.documents for row in found) == len(DOCUMENTS)
    assert sum(row.bytes for row in found) == sum(map(len, texts))


def test_short_rows_are_filled_up_to_few_lengths():
    lengths = {rows([["a" * n]], seq_len=300, batch_size=1)[0].inputs.shape[1] for n in range(1, 301)}
    assert lengths == {64, 128, 256, 300}
