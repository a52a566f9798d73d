"""Every source resumes from every position, is the same under the same seed, has fixed shapes, and closes."""

import gzip
import itertools
import json
from functools import partial

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import zstandard

from chat_files import chats, write_records, write_tokenizer
from interaction_files import write_random
from packed_files import write_packed
from plimsoll.data.chat.kept import encoded_examples
from plimsoll.data.chat.records import open_records
from plimsoll.data.chat.rows import DTYPES, PackedRows
from plimsoll.data.chat.tokenizer import load_chat_tokenizer
from plimsoll.data.examples import Examples
from plimsoll.data.hdf5.rows import Hdf5Rows
from plimsoll.data.hdf5.shuffled import MixedChunks
from plimsoll.data.loader import Loader
from plimsoll.data.packed.packed import open_packed
from plimsoll.data.packed.windows import packed_loader
from plimsoll.data.text.loader import memory_loader, packed_text_loader, text_loader
from plimsoll.data.text.opening import open_documents, python_sources
from plimsoll.data.text.tokenizer import train_byte_bpe
from plimsoll.recipes.puzzles.dataset import PuzzleSet
from plimsoll.recipes.puzzles.sampler import PuzzleDraws
from plimsoll.recipes.recommend.interactions import Interactions
from plimsoll.recipes.recommend.rows import TrainingRows, interaction_loader
from puzzle_files import write_split

TEXTS = [f"Ship {i} loads {i * 37 % 11} crates of {'tea ' * (i % 7)}and sails." for i in range(120)]
BATCHES = 7
SEQ_LEN_OF_CHATS = 256


def write_markers(folder):
    (folder / "a.txt").write_text("<|endoftext|>".join(TEXTS))
    return folder / "a.txt"


def write_blank_lines(folder):
    (folder / "a.txt").write_text("\n\n".join(TEXTS))
    return folder / "a.txt"


def write_jsonl(folder):
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return folder / "a.jsonl"


def write_parquet(folder):
    parquet.write_table(pa.table({"text": TEXTS}), folder / "a.parquet", row_group_size=50)
    return folder / "a.parquet"


def write_gz(folder):
    (folder / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(TEXTS).encode()))
    return folder / "a.txt.gz"


def write_zst(folder):
    packed = zstandard.ZstdCompressor().compress(write_jsonl(folder).read_bytes())
    (folder / "a.jsonl.zst").write_bytes(packed)
    return folder / "a.jsonl.zst"


def write_folder(folder):
    inside = folder / "set"
    (inside / "b").mkdir(parents=True)
    write_jsonl(inside)
    write_parquet(inside / "b")
    return inside


def write_streamed(folder):
    for split in ("train", "test"):
        parquet.write_table(pa.table({"text": TEXTS}), folder / f"{split}-0.parquet", row_group_size=50)
    return folder


FILES = {
    "txt at markers": write_markers,
    "txt at blank lines": write_blank_lines,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "gz": write_gz,
    "zst": write_zst,
    "folder": write_folder,
    "streamed by datasets": write_streamed,
}


def make_from(documents, kind):
    tokenizer = train_byte_bpe(documents, 280, sample_bytes=20_000)
    options = {"seq_len": 24, "stride": 20, "batch_size": 4, "seed": 7}
    if kind == "memory":
        return lambda: memory_loader(documents, tokenizer, prefetch=2, **options)
    return lambda: text_loader(documents, tokenizer, prefetch=2, shuffle_buffer_size=10, **options)


def make_from_file(write, kind, folder):
    return make_from(open_documents(str(write(folder))), kind)


def make_from_arrays(_):
    """A user's arrays, of rows that look like a text's; the 19 rows are no multiple of the batch."""
    ids = np.arange(19 * 25).reshape(19, 25)
    examples = Examples({"input_ids": ids[:, :-1], "labels": ids[:, 1:]}, called="the data")
    return lambda: examples.loader(batch_size=4, seed=7, prefetch=2)


def make_from_hdf5(folder):
    """The same rows in chunks of 3, two of which are mixed at a time."""
    ids = np.arange(19 * 25, dtype=np.int32).reshape(19, 25)
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("ids", data=ids[:, :-1], chunks=(3, 24), compression="gzip")
        file.create_dataset("next", data=ids[:, 1:], chunks=(5, 24))
    rows = Hdf5Rows(folder / "rows.h5", {"input_ids": "ids", "labels": "next"})
    return lambda: Loader(MixedChunks(rows, batch_size=4, seed=7, mix=2), prefetch=2)


def make_from_puzzles(folder):
    """Puzzles of one to three examples; three batches are an iteration."""
    write_split(folder / "train", groups=[[1, 2], [3], [1, 1, 2]], seq_len=24)
    puzzles = PuzzleSet(folder, "train")
    return lambda: Loader(PuzzleDraws(puzzles, batch_size=4, seed=7, epochs_per_iteration=3), prefetch=2)


def make_from_packed(folder):
    """19 windows of 24 tokens, which are no multiple of the batch."""
    write_packed(folder / "packed", np.arange(19 * 24 + 1), vocab_size=500, end_of_text=499)
    return lambda: packed_loader(folder / "packed", seq_len=24, batch_size=4, seed=7, prefetch=2)


def make_from_interactions(folder):
    """19 users and more rows, which are no multiple of the batch."""
    folder = write_random(folder / "set", users=19, items=60, shortest=4, longest=40)
    rows = TrainingRows(Interactions(folder), length=24)
    return lambda: interaction_loader(rows, batch_size=4, seed=7, prefetch=2)


def make_from_kept_text(folder):
    """19 windows of 24 tokens, of a text that was tokenised before."""
    write_packed(folder / "packed", np.arange(19 * 24 + 1), vocab_size=500, end_of_text=499)
    options = {"seq_len": 24, "stride": 24, "batch_size": 4, "seed": 7}
    return lambda: packed_text_loader(open_packed(folder / "packed"), prefetch=2, **options)


def make_from_chats(folder):
    """Rows of whole conversations: 7 an epoch, which are no multiple of the batch."""
    records = open_records(str(write_records(folder / "a.jsonl", chats(17))))
    tokenizer = load_chat_tokenizer(write_tokenizer(folder / "tokenizer"))
    encoded = encoded_examples(records, tokenizer, hold_out=False, say=lambda words: None)
    options = {"seq_len": SEQ_LEN_OF_CHATS, "batch_size": 4, "seed": 7}
    return lambda: Loader(PackedRows(encoded.train, **options), prefetch=2)


MAKE = {
    **{name: partial(make_from_file, write, "text") for name, write in FILES.items()},
    "memory": partial(make_from_file, write_jsonl, "memory"),
    "python sources": lambda folder: make_from(python_sources(max_examples=20), "text"),
    "chats": make_from_chats,
    "kept text": make_from_kept_text,
    "arrays": make_from_arrays,
    "hdf5": make_from_hdf5,
    "puzzles": make_from_puzzles,
    "packed": make_from_packed,
    "interactions": make_from_interactions,
}


@pytest.fixture(scope="module", params=MAKE)
def make_source(request, tmp_path_factory):
    return MAKE[request.param](tmp_path_factory.mktemp("source"))


def take(source, count):
    try:
        return list(itertools.islice(source, count))
    finally:
        source.close()


def assert_batches_equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.fixture(scope="module")
def uninterrupted(make_source):
    return take(make_source(), BATCHES)


def test_a_restored_source_continues_where_it_stopped(make_source, uninterrupted):
    stopped = make_source()
    states = []
    for _ in range(BATCHES):
        states.append(json.dumps(stopped.state()))
        next(stopped)
    stopped.close()
    for position, state in enumerate(states):
        assert len(state) < 1024
        resumed = make_source()
        resumed.restore(json.loads(state))
        assert_batches_equal(take(resumed, BATCHES - position), uninterrupted[position:])


def test_a_source_may_go_back_to_an_earlier_state(make_source):
    source = make_source()
    next(source)
    state = source.state()
    first = list(itertools.islice(source, 3))
    source.restore(state)
    assert_batches_equal(take(source, 3), first)


def test_batches_are_arrays_of_one_shape_and_those_of_a_text_have_labels_one_ahead(uninterrupted):
    for batch in uninterrupted:
        if "tokens" in batch:  # inputs and labels in one, and in the type they have on disk
            assert (batch["tokens"].shape, batch["tokens"].dtype, len(batch)) == ((4, 25), np.uint16, 1)
            continue
        if "items" in batch:  # likewise
            assert (batch["items"].shape, batch["items"].dtype, len(batch)) == ((4, 25), np.int32, 1)
            continue
        if "segments" in batch:
            shapes = {name: ((4, SEQ_LEN_OF_CHATS), np.dtype(dtype)) for name, dtype in DTYPES.items()}
            assert {name: (array.shape, array.dtype) for name, array in batch.items()} == shapes
            inside = batch["segments"][:, 1:] == batch["segments"][:, :-1]
            inside &= batch["segments"][:, 1:] > 0
            np.testing.assert_array_equal(batch["input_ids"][:, 1:][inside], batch["labels"][:, :-1][inside])
            assert not batch["learned"][:, :-1][~inside].any()
            continue
        shapes = {"labels": ((4, 24), np.int32)}
        if "inputs" in batch:
            shapes |= {"inputs": ((4, 24), np.int32), "puzzle_identifiers": ((4,), np.int32)}
        else:
            shapes |= {"input_ids": ((4, 24), np.int32)}
            np.testing.assert_array_equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
        assert {name: (array.shape, array.dtype) for name, array in batch.items()} == shapes


def test_a_source_closes_twice_and_yields_nothing_after(make_source):
    source = make_source()
    next(source)
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        next(source)
