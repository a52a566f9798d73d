"""How many blocks are encoded at a time, and what a block is: threads that only note what they are given."""

import os

import numpy as np
import pytest

from plimsoll.data import in_order
from plimsoll.data.packed import encoding
from plimsoll.data.packed.encoding import Encoder, encoded, in_threads, require_reachable
from plimsoll.data.text.documents import Piece
from plimsoll.errors import PlimsollError


class Tokenizer:
    """One id a text: its length."""

    def encode_each(self, texts, ends):
        return np.array([len(text) for text in texts], np.int32), np.array(ends, np.int64)


@pytest.fixture
def pools(monkeypatch):
    """The sizes of the pools of threads that were opened, and whether each was shut down."""
    opened, pool = [], in_order.ThreadPoolExecutor

    class Noting(pool):
        def __init__(self, workers, **options):
            super().__init__(workers, **options)
            opened.append([workers, "open"])

        def shutdown(self, wait=True, *, cancel_futures=False):
            opened[-1][1] = ("shut down", wait, cancel_futures)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(in_order, "ThreadPoolExecutor", Noting)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    return opened


@pytest.mark.parametrize("workers", [1, 3])
def test_so_many_blocks_are_encoded_at_a_time_and_one_more_is_ready(pools, workers):
    with in_threads(Tokenizer(), workers=workers) as encoder:
        assert encoder.ahead == workers + 1
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        ids, lengths = encoder.submit(["ab", "c"], [False, True])()
        assert (ids.tolist(), lengths.tolist()) == ([2, 1], [0, 1])
        assert pools == [[workers, "open"]]
    assert pools == [[workers, ("shut down", True, True)]]


def test_by_default_there_is_a_thread_for_each_core_that_this_process_may_use(pools, monkeypatch):
    monkeypatch.setattr(
        encoding.os, "sched_getaffinity", lambda process: {0, 2, 5} if process == 0 else {1}, raising=False
    )
    monkeypatch.setattr(encoding.os, "cpu_count", lambda: 7)
    with in_threads(Tokenizer(), workers=None) as encoder:
        assert encoder.ahead == 4
    monkeypatch.delattr(encoding.os, "sched_getaffinity")
    with in_threads(Tokenizer(), workers=None) as encoder:
        assert encoder.ahead == 8
    monkeypatch.setattr(encoding.os, "cpu_count", lambda: None)
    with in_threads(Tokenizer(), workers=None) as encoder:
        assert encoder.ahead == 2
    assert [workers for workers, _ in pools] == [3, 7, 1]


def test_a_block_ends_with_the_piece_that_fills_it(monkeypatch):
    """Blocks of five characters of pieces of 2, 3, 4, 1, 7 and 1."""
    monkeypatch.setattr(encoding, "BLOCK", 5)
    given = []

    def submit(texts, ends):
        given.append((texts, ends))
        return lambda: Tokenizer().encode_each(texts, ends)

    texts = ["ab", "cde", "fghi", "j", "klmnopq", "r"]
    pieces = [Piece(text, {}, text != "cde", False) for text in texts]
    blocks = [[piece.text for piece in block] for block, *_ in encoded(pieces, Encoder(1, submit))]
    assert blocks == [["ab", "cde"], ["fghi", "j"], ["klmnopq"], ["r"]]
    assert given[0] == (["ab", "cde"], [True, False])
    assert list(encoded([], Encoder(1, submit))) == []


def test_a_cluster_that_does_not_answer_is_said_and_a_local_one_is_not_asked(monkeypatch):
    asked = []

    class Connection:
        def close(self):
            asked.append("closed")

    def connect(place, timeout):
        asked.append((place, timeout))
        if place[1] == 1:
            raise OSError("refused")
        return Connection()

    monkeypatch.setattr(encoding, "_imported", lambda: None)
    monkeypatch.setattr(encoding.socket, "create_connection", connect)
    for address in ("local", "auto"):
        require_reachable(address)
    assert asked == []
    require_reachable("ray://there:10001")
    assert asked == [(("there", 10_001), 10), "closed"]
    for address in ("there:1", "there:port"):
        with pytest.raises(PlimsollError, match=f"--ray {address}: no Ray cluster answers there"):
            require_reachable(address)
