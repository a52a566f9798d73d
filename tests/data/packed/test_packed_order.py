"""Which windows of a packed file come when, and which of its bytes are read: worked out here once more, by hand.

The order is part of what a seed promises: a run that is continued by a later version goes on in it.
"""

import numpy as np
import pytest

from packed_files import write_packed
from plimsoll.data.packed import packed as module
from plimsoll.data.packed import windows as of_windows
from plimsoll.data.packed.packed import open_packed, packed_bytes, run_windows, sampled
from plimsoll.data.packed.windows import PackedWindows, packed_validation
from plimsoll.errors import DataError

SEQ, WINDOWS = 2, 11


@pytest.fixture
def numbered(tmp_path, monkeypatch):
    """Eleven windows of two, which begin with 0, 2, 4, ...; runs of three, of which two are mixed."""
    monkeypatch.setattr(module, "RUN_BYTES", 3 * SEQ * 2)
    monkeypatch.setattr(of_windows, "RUNS_MIXED", 2)
    return write_packed(tmp_path / "packed", np.arange(SEQ * WINDOWS + 1), end_of_text=299)


def order_of(seed, epoch):
    """The numbers of the windows of an epoch, by the words of the module: runs in an order, two of them mixed."""
    runs = np.random.default_rng([seed, 7, epoch]).permutation(np.arange(4, dtype=np.int32))
    order = []
    for group in range(2):
        mixed = [3 * run + at for run in runs[2 * group : 2 * group + 2].tolist() for at in range(3)]
        there = np.array([number for number in mixed if number < WINDOWS])
        turns = np.flatnonzero([number < WINDOWS for number in mixed])
        shuffled = np.random.default_rng([seed, 6, epoch, group]).permutation(turns)
        order += there[np.searchsorted(turns, shuffled)].tolist()
    return order


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_order_of_an_epoch_is_that_of_its_seed(numbered, workers):
    source = PackedWindows(open_packed(numbered), seq_len=SEQ, batch_size=4, seed=5, workers=workers)
    batches = source.walk({"epoch": 0, "group": 0, "row": 0})
    tokens = np.concatenate([next(batches)["tokens"] for _ in range(6)])
    expected = (order_of(5, 0) + order_of(5, 1) + order_of(5, 2))[:24]
    assert tokens.tolist() == [[2 * number, 2 * number + 1, 2 * number + 2] for number in expected]
    assert tokens.dtype == np.uint16


def test_a_run_of_one_window_is_read_into_the_batch_in_the_same_order(numbered, monkeypatch):
    monkeypatch.setattr(module, "RUN_BYTES", 1)
    source = PackedWindows(open_packed(numbered), seq_len=SEQ, batch_size=4, seed=5)
    assert (source.run, source.runs, source.groups) == (1, 11, 6)
    batches = source.walk({"epoch": 0, "group": 0, "row": 0})
    firsts = np.concatenate([next(batches)["tokens"][:, 0] for _ in range(3)]) // 2
    runs = np.random.default_rng([5, 7, 0]).permutation(np.arange(11, dtype=np.int32))
    expected = []
    for group in range(6):
        pair = runs[2 * group : 2 * group + 2]
        expected += pair[np.random.default_rng([5, 6, 0, group]).permutation(np.arange(len(pair)))].tolist()
    assert firsts.tolist()[:11] == expected


def test_a_file_has_so_many_runs_and_groups_of_them(numbered):
    source = PackedWindows(open_packed(numbered), seq_len=SEQ, batch_size=4, seed=5)
    assert (source.count, source.run, source.runs, source.groups) == (11, 3, 4, 2)


def test_an_id_outside_of_the_vocabulary_is_found_where_it_stands(tmp_path):
    """One that is equal to its size is outside; the place is that in the file."""
    tokens = np.arange(100) % 50
    tokens[77] = 299
    packed = open_packed(write_packed(tmp_path / "packed", tokens, shard_tokens=70))
    source = PackedWindows(packed, seq_len=9, batch_size=1, seed=0)
    object.__setattr__(packed, "vocab_size", 299)
    with pytest.raises(DataError, match=r"shard_00001/tokens.bin has the id 299 at token 7, .* \(0 to 298\)"):
        [next(batches) for batches in [source.walk({"epoch": 0, "group": 0, "row": 0})] for _ in range(11)]


def test_validation_is_every_whole_window_and_what_fills_up_the_last_batch_does_not_count(tmp_path):
    """Ten tokens are three windows of three and a next one; in batches of two the second has one that counts."""
    folder = write_packed(tmp_path / "packed", np.arange(9), validation=np.arange(10, 21))
    first, second = packed_validation(folder, seq_len=3, batch_size=2)
    assert first["tokens"].tolist() == [[10, 11, 12, 13], [13, 14, 15, 16]]
    assert second["tokens"].tolist() == [[16, 17, 18, 19], [256] * 4]
    assert (first["counted"].tolist(), second["counted"].tolist()) == ([True, True], [True, False])


def test_64_places_of_a_file_are_sampled_from_its_first_id_to_its_last(tmp_path, monkeypatch):
    assert (module.SAMPLES, module.SAMPLE_BYTES) == (64, 4_096)
    monkeypatch.setattr(module, "SAMPLES", 3)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 8)
    packed = open_packed(write_packed(tmp_path / "packed", np.arange(100), validation=[7, 8, 9]))
    samples = [ids.tolist() for ids in sampled(packed)]
    assert samples == [[0, 1, 2, 3], [48, 49, 50, 51], [96, 97, 98, 99]]
    wide = open_packed(write_packed(tmp_path / "wide", np.arange(9), dtype="uint32"))
    assert [ids.tolist() for ids in sampled(wide)] == [[0, 1], [3, 4], [7, 8]]


@pytest.mark.parametrize(
    ("seq_len", "itemsize", "windows"), [(128, 2, 256), (128, 4, 128), (32_768, 2, 1), (16_384, 2, 2), (10**6, 4, 1)]
)
def test_64_kib_of_neighbouring_windows_are_read_at_once(seq_len, itemsize, windows):
    assert run_windows(seq_len, itemsize) == windows


def test_the_bytes_of_a_packed_loader_by_hand():
    """64 runs of 256 windows of 128, and batches of 8: prefetched, waiting, held, and being built."""
    mixed = 64 * (256 * 128 + 1) * 2
    assert packed_bytes(seq_len=128, batch_size=8, prefetch=2, itemsize=2) == mixed + 5 * 8 * 129 * 2
    assert packed_bytes(seq_len=32_768, batch_size=8, prefetch=0, itemsize=2) == 3 * 8 * 32_769 * 2
    two = 64 * (2 * 16_384 + 1) * 2
    assert packed_bytes(seq_len=16_384, batch_size=1, prefetch=0, itemsize=2) == two + 3 * 16_385 * 2
