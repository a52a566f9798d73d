"""A packed folder is refused where it is not whole; its windows come once an epoch, in little memory."""

import contextlib
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from packed_files import write_packed
from plimsoll.cli.main import main
from plimsoll.data.loader import Order
from plimsoll.data.loader_bytes import READ_PACKED, loader_bytes, order_bytes
from plimsoll.data.packed.packed import Packed, is_packed, open_packed
from plimsoll.data.packed.windows import packed_loader, packed_validation
from plimsoll.data.text.loader import packed_text_loader
from plimsoll.errors import DataError, RecipeError
from plimsoll.files.folder import partial_of
from plimsoll.recipes.longcontext.data import Packed as PackedText
from plimsoll.recipes.parts import Length, Needs, Reading
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
from plimsoll.data.loader_bytes import READ_PACKED
from plimsoll.data.packed.windows import packed_loader
from plimsoll.recipes.longcontext.data import Packed
from plimsoll.recipes.parts import Length, Needs, Reading
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
reading = Reading(needs=Needs(), length=Length(batch_size=256))
print(grown, Packed(data=sys.argv[2], seq_len=1024).memory(None, reading, prefetch=2).bytes - READ_PACKED)
"""
    write_packed(tmp_path / "small", np.zeros(300 * 1024 + 1), **options)  # brings in the code, and little data
    grown, charged = map(int, printed(program, tmp_path / "small", folder).split())
    assert charged < 4 * MIB
    assert grown < charged + 2 * MIB


@pytest.mark.parametrize("change", ["file", "seq_len", "stride"])
def test_a_position_of_another_file_or_other_windows_is_refused(folder, tmp_path, change):
    options = {"seq_len": 8, "stride": 8, "batch_size": 4, "seed": 1, "prefetch": 0}
    state = packed_text_loader(open_packed(folder), **options).state()
    if change == "file":
        folder = write_packed(tmp_path / "other", np.arange(900) % 256)
    else:
        options[change] = 9
    with pytest.raises(DataError, match="the data position was saved for tokens 1,000, seq_len 8, stride 8"):
        packed_text_loader(open_packed(folder), **options).restore(state)


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
    options = {"batch_size": 1, "seed": 1, "prefetch": 0}
    with pytest.raises(DataError, match="has 1,000 tokens for training, fewer than the 1,001 of one window"):
        packed_loader(folder, seq_len=1000, **options)
    packed_loader(folder, seq_len=999, **options).close()


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
    with pytest.raises(DataError, match="ends before byte "):
        next(loader)


@pytest.mark.parametrize("damage", ["[", "[]", '{"made_with": {}, "counts": 3}'])
def test_a_damaged_description_is_refused_in_a_paragraph(folder, damage):
    (folder / "meta.json").write_text(damage)
    with pytest.raises(DataError, match=r"meta\.json is damaged: copy the folder again"):
        open_packed(folder)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_windows_come_in_the_order_of_their_epochs(tmp_path, workers):
    """Eleven windows of two, which begin with 0, 2, 4, ..., in shards of seven ids."""
    folder = write_packed(tmp_path / "packed", np.arange(22 + 1), end_of_text=299, shard_tokens=7)
    loader = packed_loader(folder, seq_len=2, batch_size=4, seed=5, prefetch=0, workers=workers)
    tokens = np.concatenate([next(loader)["tokens"] for _ in range(6)])
    order = Order(11, 5).numbers(0, 24)
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


@pytest.mark.parametrize("workers", [0, 2])
def test_an_id_outside_of_the_vocabulary_is_found_where_it_stands(tmp_path, workers):
    """One that is equal to its size is outside; the place is that in the file."""
    tokens = np.arange(100) % 50
    tokens[77] = 299
    packed = open_packed(write_packed(tmp_path / "packed", tokens, shard_tokens=70))
    object.__setattr__(packed, "vocab_size", 299)
    with pytest.raises(DataError, match=r"shard_00001/tokens.bin has the id 299 at token 7, .* \(0 to 298\)"):
        packed.rows(np.arange(11), length=10, stride=9, workers=workers)


def test_the_bytes_of_a_packed_loader_by_hand(tmp_path):
    """The order of the windows, and batches of 8: prefetched, waiting, held, and being built."""
    reading = Reading(needs=Needs(), length=Length(batch_size=8))
    folder = write_packed(tmp_path / "packed", np.zeros(1000 * 128 + 1))
    known = PackedText(data=str(folder), seq_len=128).memory(None, reading, prefetch=2)
    assert known.bytes - READ_PACKED == 8 * 1000 + 5 * 8 * 129 * 2
    planned = PackedText(vocab_size=70_000, seq_len=128).memory(None, reading, prefetch=0)
    assert planned.bytes - READ_PACKED == 3 * 8 * 129 * 4


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


# `plimsoll inspect`


def typed(capsys, *words, code=0):
    assert main(["inspect", *map(str, words)]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


@pytest.fixture
def described(tmp_path, byte_tokenizer):
    """Documents of 3, 11 and 1 tokens, end-of-text included."""
    tokens = [*b"ab", 256, *b"0123456789", 256, 256]
    byte_tokenizer.save(tmp_path / "tokenizer.json")
    content = (tmp_path / "tokenizer.json").read_bytes()
    return write_packed(
        tmp_path / "packed", tokens, validation=[*b"xyz", 256], vocab_size=257, characters=15, tokenizer=content
    )


def test_a_packed_folder_is_described(described, byte_tokenizer, capsys):
    found = json.loads(typed(capsys, described, "--json"))
    assert (found["tokens"], found["documents"], found["validation_tokens"]) == (15, 3, 4)
    assert found["document_tokens"] == 5.0
    assert found["held_out_share"] == 4 / 19
    assert (found["vocab_size"], found["tokenizer_vocab_size"]) == (257, 257)
    assert found["sample"] == byte_tokenizer.decode(np.array([*b"ab", 256, *b"0123456789", 256, 256]))
    assert found["bytes"] == sum(path.stat().st_size for path in described.rglob("*") if path.is_file())
    in_words = typed(capsys, described)
    for figure in ("15 tokens of 3 documents", "4 tokens (21.1 %)", "257 ids", "0.79 characters a token"):
        assert figure in in_words


def test_what_is_cut_short_or_unfinished_is_refused(described, capsys):
    (described / "shard_00000/tokens.bin").write_bytes(b"\0" * 29)
    assert "tokens.bin ends before byte " in typed(capsys, described, code=2)
    described.rename(partial_of(described))
    assert "is not finished" in typed(capsys, described, code=2)
