"""Rows: every document once an epoch, whole where it fits, its labels and boundaries exact, few positions empty."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.data.chat.encoded import NEVER, EncodedDocuments
from plimsoll.data.chat.packing import best_fit, group_size
from plimsoll.data.chat.row_bytes import rows_bytes
from plimsoll.data.chat.rows import DTYPES, EMPTY, PackedRows, validation_rows
from plimsoll.data.loader import Loader
from plimsoll.errors import DataError

END = 9_999


def write_documents(folder, lengths, learned_from=1, seed=0):
    """Documents of these lengths: the first id of each is its number, what follows is drawn."""
    draw = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    learned_from = np.broadcast_to(learned_from, len(lengths))
    ids = draw.integers(0, 5_000, starts[-1]).astype("<u2")
    flags = np.zeros(starts[-1], np.uint8)
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        ids[start], flags[start + learned_from[number] : end] = number, 1
    ids.tofile(folder / "train.tokens.bin")
    flags.tofile(folder / "train.learned.bin")
    first = np.where(learned_from < lengths, learned_from, NEVER).astype(np.int32)
    return EncodedDocuments(
        folder=folder, side="train", dtype="uint16", end_of_text=END, tokens=int(starts[-1]), learned=int(flags.sum()),
        starts=starts, first=first,
    )  # fmt: skip


def documents_of(batch, row):
    """Number, tokens, labels and weights of each document in a row, which is checked on the way."""
    arrays = {name: values[row] for name, values in batch.items()}
    changes = np.flatnonzero(np.diff(arrays["segments"], prepend=-1))
    for start, end in zip(changes, [*changes[1:], len(arrays["segments"])], strict=True):
        np.testing.assert_array_equal(arrays["positions"][start:end], np.arange(end - start))
        part = {name: values[start:end] for name, values in arrays.items()}
        if part["segments"][0] == EMPTY:
            assert not part["learned"].any()
            assert (part["input_ids"] == END).all()
            assert end == len(arrays["segments"])
        else:
            yield part


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 64), st.integers(0, 3))
def test_every_document_is_in_one_row_whole_where_it_fits(tmp_path_factory, lengths, seq_len, seed):
    learned_from = np.array([length // 2 for length in lengths])  # of documents of one token, none
    documents = write_documents(tmp_path_factory.mktemp("rows"), lengths, np.maximum(learned_from, 1))
    held = [number for number in range(len(lengths)) if documents.first[number] < seq_len]
    if not held:
        with pytest.raises(DataError, match=rf"nothing in the first {seq_len} tokens .*--loss-on all"):
            PackedRows(documents, seq_len=seq_len, batch_size=2, seed=seed)
        return
    rows = PackedRows(documents, seq_len=seq_len, batch_size=2, seed=seed)
    found = {}
    packed = [rows.packed(0, group) for group in range(rows.groups)]
    for batch in (rows.arrays(part[at : at + 2]) for part in packed for at in range(0, len(part), 2)):
        assert {name: values.dtype.name for name, values in batch.items()} == dict(DTYPES)
        for part in itertools.chain(*(documents_of(batch, row) for row in range(2))):
            found[int(part["input_ids"][0])] = part
            (ids, flags) = documents.read([int(part["input_ids"][0])], seq_len)[0]
            np.testing.assert_array_equal(part["input_ids"], ids)
            np.testing.assert_array_equal(part["labels"][:-1], ids[1:])
            np.testing.assert_array_equal(part["learned"], np.append(flags[1:], 0))
    assert sorted(found) == held
    facts = rows.packing()
    assert (facts.documents, facts.left_out) == (len(held), len(lengths) - len(held))
    assert facts.tokens == sum(min(lengths[number], seq_len) for number in held)
    too_long = [length for length in lengths if length > seq_len]
    assert (facts.cut, facts.cut_tokens) == (len(too_long), sum(too_long) - seq_len * len(too_long))
    assert facts.learned == pytest.approx(documents.learned / documents.tokens)
    assert facts.rows == rows.rows(0) >= facts.tokens / seq_len
    assert facts.empty == pytest.approx(1 - facts.tokens / facts.rows / seq_len)


@given(st.lists(st.integers(1, 50), max_size=200))
def test_best_fit_needs_at_most_twice_the_rows_that_the_tokens_fill(lengths):
    rows = best_fit(np.array(lengths, int), 50)
    assert sorted(itertools.chain(*rows)) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= 50 for row in rows)
    assert len(rows) <= max(1, 2 * sum(lengths) / 50) or not lengths


def test_the_fullest_row_with_room_is_taken():
    assert best_fit(np.array([5, 6, 4, 3, 2]), 10) == [[1, 2], [0, 3, 4]]


@pytest.mark.parametrize(("mean", "spread", "seq_len"), [(350, 0.9, 2048), (900, 0.7, 4096)])
def test_few_positions_stay_empty_at_lengths_of_chats(tmp_path, mean, spread, seq_len):
    lengths = np.random.default_rng(1).lognormal(np.log(mean), spread, 6_000).astype(int) + 2
    facts = PackedRows(write_documents_by_length(tmp_path, lengths), seq_len=seq_len, batch_size=1, seed=3).packing()
    assert facts.empty < 0.01


def write_documents_by_length(folder, lengths):
    """Documents of which only lengths are asked: no tokens are written."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    first = np.ones(len(lengths), np.int32)
    return EncodedDocuments(
        folder=folder, side="train", dtype="uint16", end_of_text=END, tokens=int(starts[-1]), learned=1, starts=starts,
        first=first,
    )  # fmt: skip


def test_each_epoch_and_seed_has_another_order_and_the_loader_goes_on_from_one_to_the_next(tmp_path):
    documents = write_documents(tmp_path, np.random.default_rng(2).integers(2, 30, 300))
    rows = PackedRows(documents, seq_len=32, batch_size=4, seed=5)
    numbers = [
        np.concatenate([*itertools.chain(*(rows.packed(epoch, g) for g in range(rows.groups)))]) for epoch in (0, 1)
    ]
    assert sorted(numbers[0]) == sorted(numbers[1]) == list(range(300))
    assert numbers[0].tolist() != numbers[1].tolist()
    other = PackedRows(documents, seq_len=32, batch_size=4, seed=6)
    assert [row.tolist() for row in other.packed(0, 0)] != [row.tolist() for row in rows.packed(0, 0)]
    loader = Loader(PackedRows(documents, seq_len=32, batch_size=4, seed=5))
    expected = [row.tolist() for epoch in (0, 1) for g in range(rows.groups) for row in rows.packed(epoch, g)]
    taken = list(itertools.islice(loader, len(expected) // 4))
    assert rows.rows_of(2) == len(expected)
    assert rows.rows_of(1.5) == rows.rows(0) + round(rows.rows(1) / 2)
    drawn = [[int(part["input_ids"][0]) for part in documents_of(batch, row)] for batch in taken for row in range(4)]
    assert drawn == expected[: len(drawn)]


def test_many_documents_are_packed_in_groups_of_which_each_has_hundreds_of_rows(tmp_path):
    documents = write_documents_by_length(tmp_path, np.full(70_000, 10))
    rows = PackedRows(documents, seq_len=1000, batch_size=1, seed=0)
    assert rows.group == group_size(10, 1000) == 25_600
    numbers = np.concatenate([np.concatenate(rows.packed(0, group)) for group in range(rows.groups)])
    assert np.array_equal(np.sort(numbers), np.arange(70_000))  # more than are permuted as a whole
    assert group_size(1000, 1024) == 4096
    assert group_size(1, 2**20) == 2**17


def test_a_document_that_is_too_long_may_be_refused(tmp_path):
    documents = write_documents(tmp_path, np.array([10, 31, 40]))
    with pytest.raises(
        DataError, match=r"2 of the 3 documents of my\.jsonl are longer than --seq-len 30.*--seq-len 40"
    ):
        PackedRows(documents, seq_len=30, batch_size=1, seed=0, truncate=False, name="my.jsonl")
    PackedRows(documents, seq_len=40, batch_size=1, seed=0, truncate=False)


def test_validation_has_each_document_once_and_fills_its_last_batch_with_nothing(tmp_path):
    documents = write_documents(tmp_path, np.random.default_rng(2).integers(2, 30, 61))
    batches = list(validation_rows(documents, seq_len=32, batch_size=8))
    assert all(batch["input_ids"].shape == (8, 32) for batch in batches)
    parts = [part for batch in batches for row in range(8) for part in documents_of(batch, row)]
    assert sorted(int(part["input_ids"][0]) for part in parts) == list(range(61))
    fewer = list(validation_rows(documents, seq_len=32, batch_size=8, max_tokens=100))
    parts = [part for batch in fewer for row in range(8) for part in documents_of(batch, row)]
    lengths = np.diff(documents.starts)
    assert sorted(int(part["input_ids"][0]) for part in parts) == list(
        range(int(np.searchsorted(lengths.cumsum(), 100)) + 1)
    )
    assert list(validation_rows(write_documents(tmp_path, np.array([9]), 20), seq_len=32, batch_size=8)) == []


def test_host_bytes_grow_with_documents_and_batches():
    small = rows_bytes(documents=1_000, tokens=300_000, seq_len=128, batch_size=4, prefetch=2)
    large = rows_bytes(documents=2_001_000, tokens=600_300_000, seq_len=128, batch_size=4, prefetch=2)
    assert 24 * 2_000_000 < large - small < 24 * 2_000_000 + 2**20
    more = rows_bytes(documents=1_000, tokens=300_000, seq_len=128, batch_size=4, prefetch=3)
    assert more - small == 4 * 128 * (4 + 4 + 4 + 4 + 4)


def test_a_position_of_other_rows_is_refused(tmp_path):
    documents = write_documents(tmp_path, np.array([10, 10, 10]))
    first = Loader(PackedRows(documents, seq_len=20, batch_size=1, seed=0))
    other = Loader(PackedRows(documents, seq_len=30, batch_size=1, seed=0, name="my.jsonl"))
    with pytest.raises(DataError, match=r"saved for .*, seq_len 20, and my\.jsonl has .*, seq_len 30"):
        other.restore(first.state())
