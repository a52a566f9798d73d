"""Which ids of a packed folder are read, and that its loader takes the bytes that are charged."""

import contextlib
import tracemalloc

import numpy as np
import pytest

from packed_files import write_packed
from plimsoll.data.loader import Order
from plimsoll.data.loader_bytes import loader_bytes, order_bytes
from plimsoll.data.packed.packed import open_packed, packed_bytes
from plimsoll.data.packed.windows import packed_loader
from plimsoll.data.text.loader import packed_text_loader
from plimsoll.errors import DataError

SEQ, WINDOWS = 2, 11


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_windows_come_in_the_order_of_their_epochs(tmp_path, workers):
    """Eleven windows of two, which begin with 0, 2, 4, ..., in shards of seven ids."""
    folder = write_packed(tmp_path / "packed", np.arange(SEQ * WINDOWS + 1), end_of_text=299, shard_tokens=7)
    loader = packed_loader(folder, seq_len=SEQ, batch_size=4, seed=5, prefetch=0, workers=workers)
    tokens = np.concatenate([next(loader)["tokens"] for _ in range(6)])
    order = Order(WINDOWS, 5).numbers(0, 24)
    assert tokens.tolist() == [[2 * number, 2 * number + 1, 2 * number + 2] for number in order]
    assert tokens.dtype == np.uint16


@pytest.mark.parametrize("seed", [None, 5])
def test_windows_of_text_begin_a_stride_apart(tmp_path, seed):
    packed = open_packed(write_packed(tmp_path / "packed", np.arange(30), end_of_text=299))
    loader = packed_text_loader(packed, seq_len=4, batch_size=9, stride=3, seed=seed, prefetch=0)
    batch = next(loader)
    assert batch["input_ids"][:, 0].tolist() == (3 * Order(9, seed).of_epoch(0)).tolist()
    assert (batch["labels"] - batch["input_ids"] == 1).all()
    assert batch["labels"].dtype == np.int32
    with pytest.raises(DataError, match="30 tokens for training, fewer than the 31 of one window"):
        packed_text_loader(packed, seq_len=30, batch_size=9, stride=3, seed=seed, prefetch=0)


@pytest.mark.parametrize("other", [{"seq_len": 8}, {"stride": 8}])
def test_a_position_of_other_windows_is_refused(tmp_path, other):
    packed = open_packed(write_packed(tmp_path / "packed", np.arange(100) % 250, end_of_text=299))
    options = {"seq_len": 16, "stride": 16, "batch_size": 4, "seed": 3, "prefetch": 0}
    state = packed_text_loader(packed, **options).state()
    with pytest.raises(DataError, match="the data position was saved for tokens 100, seq_len 16, stride 16"):
        packed_text_loader(packed, **options | other).restore(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_id_outside_of_the_vocabulary_is_found_where_it_stands(tmp_path, workers):
    """One that is equal to its size is outside; the place is that in the file."""
    tokens = np.arange(100) % 50
    tokens[77] = 299
    packed = open_packed(write_packed(tmp_path / "packed", tokens, shard_tokens=70))
    object.__setattr__(packed, "vocab_size", 299)
    with pytest.raises(DataError, match=r"shard_00001/tokens.bin has the id 299 at token 7, .* \(0 to 298\)"):
        packed.rows(np.arange(11), length=10, stride=9, workers=workers)


def test_the_bytes_of_a_packed_loader_by_hand():
    """The order of the windows, and batches of 8: prefetched, waiting, held, and being built."""
    sizes = {"seq_len": 128, "batch_size": 8, "itemsize": 2}
    assert packed_bytes(windows=1000, prefetch=2, **sizes) == 8 * 1000 + 5 * 8 * 129 * 2
    assert packed_bytes(windows=0, prefetch=0, **sizes | {"itemsize": 4}) == 3 * 8 * 129 * 4


@pytest.mark.parametrize(("seq_len", "batch_size", "prefetch"), [(512, 64, 2), (64, 512, 0)])
def test_a_loader_of_text_holds_the_bytes_the_planner_charges_and_no_buffer(tmp_path, seq_len, batch_size, prefetch):
    packed = open_packed(write_packed(tmp_path / "x", np.arange(10**6) % 256, vocab_size=257, end_of_text=256))
    options = {"seq_len": seq_len, "batch_size": batch_size, "prefetch": prefetch}
    with contextlib.closing(packed_text_loader(packed, stride=seq_len, seed=1, **options)) as first:
        next(first)  # what the first loader of a process imports is not the loader's
    tracemalloc.start()
    loader = packed_text_loader(packed, stride=seq_len, seed=1, **options)
    for _ in range(prefetch + 3):
        batch = next(loader)
    peak = tracemalloc.get_traced_memory()[1]
    loader.close()
    tracemalloc.stop()
    del batch
    charged = loader_bytes(shuffle_buffer_size=0, vocab_size=257, **options) + order_bytes(10**6 // seq_len)
    assert peak < charged + 100_000
    assert charged < 2.5 * peak
