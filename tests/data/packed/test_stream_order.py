"""Batches from the tokenised file are those of the stream, to the bit, from every position."""

import contextlib
import itertools
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from packed_files import write_packed
from plimsoll.data.loader_bytes import loader_bytes
from plimsoll.data.packed.packed import open_packed
from plimsoll.data.packed.stream_order import stream_order_loader
from plimsoll.data.text.loader import load_tokens, text_loader
from plimsoll.errors import DataError

TEXTS = [f"text number {i} " * (i % 5 + 1) for i in range(40)]


@pytest.fixture(scope="module")
def packed(byte_tokenizer, listed_documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "tokens"
    tokens = load_tokens(listed_documents(TEXTS), byte_tokenizer)
    write_packed(folder, tokens, vocab_size=257, end_of_text=256)
    return open_packed(folder)


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(
    seq_len=st.integers(1, 60),
    stride=st.integers(1, 70),
    batch_size=st.integers(1, 9),
    shuffle=st.sampled_from([0, 1, 2, 7, 50, 1000]),
    seed=st.sampled_from([0, 42, 2**31 - 2, 2**40 + 3]),
)
def test_the_file_gives_the_batches_of_the_stream_over_several_epochs(
    packed, byte_tokenizer, listed_documents, seq_len, stride, batch_size, shuffle, seed
):
    options = {"seq_len": seq_len, "stride": stride, "batch_size": batch_size, "seed": seed, "prefetch": 0}
    stream = text_loader(listed_documents(TEXTS), byte_tokenizer, shuffle_buffer_size=shuffle, **options)
    file = stream_order_loader(packed, shuffle_buffer_size=shuffle, **options)
    batches = 2 * packed.tokens // (stride * batch_size) + 3
    for one, other in itertools.islice(zip(stream, file, strict=True), min(batches, 100)):
        for name in ("input_ids", "labels"):
            np.testing.assert_array_equal(one[name], other[name])
            assert one[name].dtype == other[name].dtype


OPTIONS = {"seq_len": 16, "stride": 16, "batch_size": 4, "shuffle_buffer_size": 10, "seed": 3, "prefetch": 2}


@pytest.mark.parametrize("other", [{"seq_len": 8}, {"stride": 8}])
def test_a_position_of_other_windows_is_refused(packed, other):
    state = stream_order_loader(packed, **OPTIONS).state()
    with pytest.raises(DataError, match="the data position was saved for 16"):
        stream_order_loader(packed, **OPTIONS | other).restore(state)


@pytest.mark.parametrize("shuffle", [0, 10])
@pytest.mark.parametrize("taken", [0, 3, 5, 31])
def test_a_position_of_the_stream_is_the_same_place_in_the_file(
    packed, byte_tokenizer, listed_documents, shuffle, taken
):
    options = OPTIONS | {"shuffle_buffer_size": shuffle}
    stream = text_loader(listed_documents(TEXTS), byte_tokenizer, **options)
    list(itertools.islice(stream, taken))
    file = stream_order_loader(packed, **options)
    file.restore(json.loads(json.dumps(stream.state())))
    for one, other in itertools.islice(zip(stream, file, strict=True), 5):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
    with pytest.raises(DataError, match="another kind of loader"):
        stream_order_loader(packed, **options | {"shuffle_buffer_size": 10 - shuffle}).restore(
            text_loader(listed_documents(TEXTS), byte_tokenizer, **options).state()
        )


def test_a_text_shorter_than_a_window_is_refused(packed):
    with pytest.raises(DataError, match="fewer than the 100,001 of one window"):
        stream_order_loader(packed, **OPTIONS | {"seq_len": 100_000})


def test_a_file_that_is_cut_short_or_has_other_ids_is_noticed_where_it_is_read(packed, tmp_path):
    tokens = packed.read("tokens.bin", 0, packed.tokens)
    changed = open_packed(write_packed(tmp_path / "x", tokens, vocab_size=257, end_of_text=256))
    in_order = OPTIONS | {"shuffle_buffer_size": 0, "prefetch": 0}
    tokens[70] = 300
    tokens.tofile(tmp_path / "x/shard_00000/tokens.bin")
    loader = stream_order_loader(changed, **in_order)
    next(loader)
    with pytest.raises(DataError, match="has the id 300 at token 70"):
        next(loader)
    tokens[:60].tofile(tmp_path / "x/shard_00000/tokens.bin")
    with pytest.raises(DataError, match="ends before token 65"):
        next(stream_order_loader(changed, **in_order))


@pytest.mark.parametrize(("seq_len", "batch_size", "prefetch"), [(512, 64, 2), (64, 512, 0)])
def test_a_loader_holds_the_bytes_the_planner_charges_and_no_buffer(tmp_path, seq_len, batch_size, prefetch):
    write_packed(tmp_path / "x", np.arange(10**6) % 256, vocab_size=257, end_of_text=256)
    options = {"seq_len": seq_len, "batch_size": batch_size, "prefetch": prefetch}
    others = {"stride": seq_len, "shuffle_buffer_size": 1000, "seed": 1}
    with contextlib.closing(stream_order_loader(open_packed(tmp_path / "x"), **options, **others)) as first:
        next(first)  # what the first loader of a process imports is not the loader's
    tracemalloc.start()
    loader = stream_order_loader(open_packed(tmp_path / "x"), **options, **others)
    for _ in range(prefetch + 3):
        batch = next(loader)
    peak = tracemalloc.get_traced_memory()[1]
    loader.close()
    tracemalloc.stop()
    del batch
    charged = loader_bytes(shuffle_buffer_size=0, vocab_size=257, **options)
    assert peak < charged + 100_000
    assert charged < 2.5 * peak
