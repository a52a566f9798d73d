"""A packed folder is refused where it is not whole; its windows come once an epoch, in little memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from packed_files import write_packed
from plimsoll.data.packed.packed import Packed, is_packed, open_packed
from plimsoll.data.packed.windows import packed_loader, packed_validation
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.folder import partial_of
from plimsoll.units import MIB
from programs import printed


@pytest.fixture
def folder(tmp_path):
    return write_packed(tmp_path / "packed", np.arange(1000) % 256, validation=np.arange(60))


def test_a_folder_says_what_is_in_it(folder):
    packed = open_packed(folder)
    assert isinstance(packed, Packed)
    assert (packed.dtype, packed.vocab_size, packed.end_of_text) == ("uint16", 300, 256)
    assert (packed.tokens, packed.validation_tokens, packed.documents) == (1000, 60, 1)
    assert packed.source == "a test"
    assert packed.windows(99) == 10
    assert packed.windows(100) == 9
    assert is_packed(folder)
    assert not is_packed(folder.parent)


@settings(max_examples=examples(30))
@given(
    st.integers(1, 40),
    st.integers(1, 300),
    st.integers(1, 70),
    st.sampled_from(["uint16", "uint32"]),
    st.integers(0, 2),
    st.none() | st.integers(5, 5000),
)
def test_every_window_comes_once_an_epoch_whatever_the_sizes(
    tmp_path_factory, seq_len, windows, batch, dtype, workers, shard_tokens
):
    tokens = np.arange(windows * seq_len + 1)  # each id is its own place
    extra = np.full(np.random.default_rng(windows).integers(seq_len), len(tokens) - 1)  # a tail that is no window
    folder = tmp_path_factory.mktemp("packed")
    sizes = {"vocab_size": 2**16, "end_of_text": 0, "dtype": dtype, "shard_tokens": shard_tokens}
    write_packed(folder, np.concatenate([tokens, extra]), **sizes)
    loader = packed_loader(folder, seq_len=seq_len, batch_size=batch, seed=3, prefetch=0, workers=workers)
    drawn = np.concatenate([next(loader)["tokens"] for _ in range(-(-3 * windows // batch))])
    assert drawn.dtype == dtype
    np.testing.assert_array_equal(drawn - drawn[:, :1], np.broadcast_to(np.arange(seq_len + 1), drawn.shape))
    for epoch in range(3):
        starts = drawn[epoch * windows : (epoch + 1) * windows, 0]
        assert sorted((starts // seq_len).tolist()) == list(range(windows))


def test_memory_holds_the_order_and_the_batches_in_flight_whatever_the_size_of_the_file(tmp_path):
    """In a process of its own, whose heap is its own: a file of 32 MiB through a loader that is charged 3 MiB."""
    options = {"vocab_size": 2**16, "end_of_text": 0}
    folder = write_packed(tmp_path / "packed", np.zeros(16 * 1024 * 1024 + 1), **options)
    program = """
import resource, sys
from plimsoll.data.packed.packed import packed_bytes
from plimsoll.data.packed.windows import packed_loader
options = {"seq_len": 1024, "batch_size": 256, "prefetch": 2}
loader = packed_loader(sys.argv[1], seed=1, **options)
next(loader)
loader.close()
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
loader = packed_loader(sys.argv[2], seed=1, **options)
for _ in range(16 * 4):
    next(loader)
grown = peak() - before
loader.close()
print(grown, packed_bytes(windows=16 * 1024, itemsize=2, **options))
"""
    write_packed(tmp_path / "small", np.zeros(300 * 1024 + 1), **options)  # brings in the code, and little data
    grown, charged = map(int, printed(program, tmp_path / "small", folder).split())
    assert charged < 4 * MIB
    assert grown < charged + 2 * MIB


def test_a_position_of_another_file_or_window_is_refused(folder, tmp_path):
    loader = packed_loader(folder, seq_len=8, batch_size=4, seed=1, prefetch=0)
    state = loader.state()
    other = write_packed(tmp_path / "other", np.arange(900) % 256)
    with pytest.raises(DataError, match=r"saved for tokens 1,000, .*other has tokens 900"):
        packed_loader(other, seq_len=8, batch_size=4, seed=1, prefetch=0).restore(state)
    with pytest.raises(DataError, match=r"saved for tokens 1,000, seq_len 8, and"):
        packed_loader(folder, seq_len=9, batch_size=4, seed=1, prefetch=0).restore(state)


def test_validation_has_every_whole_window_once_and_says_what_only_fills_up(folder):
    batches = list(packed_validation(folder, seq_len=10, batch_size=4))
    assert [batch["tokens"].shape for batch in batches] == [(4, 11), (4, 11)]
    assert batches[0]["tokens"].dtype == np.uint16
    counted = np.concatenate([batch["counted"] for batch in batches])
    tokens = np.concatenate([batch["tokens"] for batch in batches])
    assert counted.tolist() == [True] * 5 + [False] * 3
    np.testing.assert_array_equal(tokens[counted], np.arange(5)[:, None] * 10 + np.arange(11))
    assert (tokens[~counted] == 256).all()
    assert list(packed_validation(folder, seq_len=60, batch_size=4)) == []  # fewer tokens than a window
    assert len(list(packed_validation(folder, seq_len=59, batch_size=4))) == 1


def test_a_window_longer_than_the_file_is_refused_with_both_lengths(folder):
    with pytest.raises(
        DataError, match="has 1,000 tokens, fewer than the 1,001 of one window: use a smaller --seq-len"
    ):
        packed_loader(folder, seq_len=1000, batch_size=1, seed=1, prefetch=0)
    packed_loader(folder, seq_len=999, batch_size=1, seed=1, prefetch=0).close()


@pytest.mark.parametrize(("name", "value"), [("seq_len", 0), ("workers", -1)])
def test_sizes_that_cannot_be_are_refused_by_their_option(folder, name, value):
    options = {"seq_len": 8, "batch_size": 4, "seed": 1, "prefetch": 0} | {name: value}
    with pytest.raises(RecipeError, match=f"--{name.replace('_', '-')} must be"):
        packed_loader(folder, **options)


def test_what_is_no_packed_folder_is_told_apart_from_an_unfinished_one(tmp_path, folder):
    for other in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError, match="is no packed folder: `plimsoll prepare longcontext"):
            open_packed(other)
    folder.rename(partial_of(folder))
    with pytest.raises(DataError, match=r"packed.partial is not finished: `plimsoll prepare longcontext"):
        open_packed(folder)


def test_a_file_that_is_cut_while_it_is_read_is_a_refusal_and_no_crash(folder):
    loader = packed_loader(folder, seq_len=8, batch_size=4, seed=1, prefetch=0)
    (folder / "shard_00000/tokens.bin").write_bytes(b"\0\0" * 10)
    with pytest.raises(DataError, match="ends before token"):
        next(loader)


@pytest.mark.parametrize("damage", ["[", "[]", '{"made_with": {}, "counts": 3}'])
def test_a_damaged_description_is_refused_in_a_paragraph(folder, damage):
    (folder / "meta.json").write_text(damage)
    with pytest.raises(DataError, match=r"meta\.json is damaged: copy the folder again"):
        open_packed(folder)
