"""Batches resume through shuffle and prefetch, cost the bytes that are charged, and end their thread."""

import gc
import itertools
import json
import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.loader import Loader
from plimsoll.data.loader_bytes import loader_bytes
from plimsoll.data.text.loader import ShuffledWindows, load_tokens, memory_loader, text_loader, windows_from_array
from plimsoll.data.text.windows import TokenWindows
from plimsoll.errors import DataError, RecipeError
from plimsoll.types import IGNORE
from programs import printed

TEXTS = [f"text number {i} " * (i % 5 + 1) for i in range(60)]


def assert_batches_equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
        np.testing.assert_array_equal(one["labels"], other["labels"])


def rows_of(batches):
    """Windows of a token more than the inputs."""
    return np.concatenate([np.c_[batch["input_ids"], batch["labels"][:, -1:]] for batch in batches]).tolist()


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 7), st.integers(0, 30), st.integers(0, 3), st.integers(6, 40), st.integers(0, 30))
def test_every_position_resumes_through_shuffle_and_prefetch(
    byte_tokenizer, listed_documents, batch_size, shuffle, prefetch, stride, position
):
    options = {"batch_size": batch_size, "shuffle_buffer_size": shuffle, "prefetch": prefetch, "stride": stride}

    def make():
        return text_loader(listed_documents(TEXTS[:14]), byte_tokenizer, seq_len=16, seed=3, **options)

    stopped = make()
    list(itertools.islice(stopped, position))
    state = json.dumps(stopped.state())
    assert len(state) < 1024
    resumed = make()
    resumed.restore(json.loads(state))
    assert resumed.state() == json.loads(state)
    assert_batches_equal(list(itertools.islice(resumed, 20)), list(itertools.islice(stopped, 20)))
    stopped.close()
    resumed.close()


@pytest.mark.parametrize("shuffle", [0, 1, 7, 50])
def test_shuffling_changes_the_order_within_a_buffer_and_nothing_else(byte_tokenizer, listed_documents, shuffle):
    documents = listed_documents(TEXTS)
    stream = TokenWindows(documents, byte_tokenizer, seq_len=16).walk(dict(TokenWindows.start))
    windows = [window.tolist() for window in itertools.islice(stream, 300)]
    options = {"seq_len": 16, "batch_size": 5, "shuffle_buffer_size": shuffle, "seed": 5, "prefetch": 0}
    first, second = (text_loader(documents, byte_tokenizer, **options) for _ in range(2))
    batches = list(itertools.islice(first, 60))
    assert_batches_equal(batches, list(itertools.islice(second, 60)))
    rows = rows_of(batches)
    assert (rows == windows) == (shuffle < 2)
    size = max(1, shuffle)
    for begin in range(0, 300 // size * size, size):
        assert sorted(rows[begin : begin + size]) == sorted(windows[begin : begin + size])


def test_one_window_is_read_for_each_that_leaves_the_buffer(byte_tokenizer, listed_documents):
    windows = TokenWindows(listed_documents(TEXTS), byte_tokenizer, seq_len=16)
    reads = []
    walk = windows.walk
    windows.walk = lambda at: (reads.append(1) or window for window in walk(at))
    loader = Loader(ShuffledWindows(windows, batch_size=2, buffer=20, seed=3))
    for batches in range(1, 30):
        next(loader)
        assert len(reads) == 20 + 2 * batches


@pytest.mark.parametrize("tokens", [2, 16, 17, 18, 65, 100])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_validation_counts_every_token_but_the_first_once(tokens, batch_size):
    stream = np.arange(tokens, dtype=np.uint16)
    batches = list(windows_from_array(stream, seq_len=16, batch_size=batch_size))
    labels = np.concatenate([batch["labels"].ravel() for batch in batches])
    inputs = np.concatenate([batch["input_ids"].ravel() for batch in batches])
    counted = labels != IGNORE
    np.testing.assert_array_equal(labels[counted], stream[1:])
    np.testing.assert_array_equal(inputs[counted], stream[:-1])
    assert {batch["labels"].shape for batch in batches} == {(batch_size, 16)}


def test_validation_without_tokens_says_why():
    with pytest.raises(DataError, match=r"validation has 0 tokens.*no document was held out"):
        next(windows_from_array(np.empty(0, np.int32), seq_len=16, batch_size=2))


def test_every_epoch_of_a_memory_loader_is_another_permutation(byte_tokenizer, listed_documents):
    tokens = load_tokens(listed_documents(TEXTS), byte_tokenizer)
    count = (len(tokens) - 1) // 16
    loader = memory_loader(listed_documents(TEXTS), byte_tokenizer, seq_len=16, batch_size=count, seed=1, prefetch=2)
    epochs = [rows_of([next(loader)]), rows_of([next(loader)])]
    loader.close()
    windows = sorted(tokens[16 * number : 16 * number + 17].tolist() for number in range(count))
    assert sorted(epochs[0]) == sorted(epochs[1]) == windows
    assert epochs[0] != epochs[1]


def test_a_state_of_another_kind_of_loader_is_refused(byte_tokenizer, listed_documents):
    documents = listed_documents(TEXTS)
    memory = memory_loader(documents, byte_tokenizer, seq_len=16, batch_size=5, seed=1, prefetch=0)
    stream = text_loader(documents, byte_tokenizer, seq_len=16, batch_size=5, shuffle_buffer_size=8)
    plain = text_loader(documents, byte_tokenizer, seq_len=16, batch_size=5, shuffle_buffer_size=0)
    for one, other in itertools.permutations([memory, stream, plain], 2):
        with pytest.raises(DataError, match="the data position was saved for"):
            one.restore(other.state())


@pytest.mark.parametrize("wrong", ["batch_size", "shuffle_buffer_size"])
def test_a_negative_option_is_refused_by_its_name(byte_tokenizer, listed_documents, wrong):
    with pytest.raises(RecipeError, match=f"--{wrong.replace('_', '-')} must be"):
        text_loader(listed_documents(TEXTS), byte_tokenizer, **{"seq_len": 8, "batch_size": 2, wrong: -1})


def wait_until_full(loader):
    deadline = time.monotonic() + 20
    while not loader._held[0]._buffer.full() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("seq_len", "batch_size", "shuffle", "prefetch"),
    [(512, 16, 2000, 2), (512, 512, 0, 4)],
)
def test_a_loader_holds_the_bytes_the_planner_charges(
    byte_tokenizer, listed_documents, seq_len, batch_size, shuffle, prefetch
):
    documents = listed_documents(["some words of a text " * 100] * 1000)
    options = {"seq_len": seq_len, "batch_size": batch_size, "prefetch": prefetch}
    tracemalloc.start()
    loader = text_loader(documents, byte_tokenizer, shuffle_buffer_size=shuffle, **options)
    for _ in range(5):
        batch = next(loader)
    wait_until_full(loader)
    peak = tracemalloc.get_traced_memory()[1]
    loader.close()
    tracemalloc.stop()
    del batch
    charged = loader_bytes(shuffle_buffer_size=shuffle, vocab_size=byte_tokenizer.size, **options)
    blocks = 2 * 2**20  # text and ids on their way, whatever the options; part of the process floor
    assert peak < charged + blocks
    assert charged < 1.25 * peak


def test_loading_into_memory_peaks_at_an_eighth_more_than_its_size(byte_tokenizer, listed_documents):
    documents = listed_documents(["some words of a text " * 100] * 1500)
    tracemalloc.start()
    tokens = load_tokens(documents, byte_tokenizer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if np.lib.NumpyVersion(np.__version__) >= "2.5.0":  # it traces an array that grows in place as two
        peak -= tokens.nbytes
    assert tokens.nbytes > 6 * 10**6
    assert peak < tokens.nbytes * 9 / 8 + 2 * 2**20


def prefetch_threads():
    return [thread for thread in threading.enumerate() if "prefetch" in thread.name.lower()]


def test_close_ends_the_thread_and_may_be_called_twice(byte_tokenizer, listed_documents):
    gc.collect()
    before = len(prefetch_threads())
    loader = text_loader(listed_documents(TEXTS), byte_tokenizer, seq_len=16, batch_size=2, prefetch=3)
    next(loader)
    assert len(prefetch_threads()) == before + 1
    state = loader.state()
    loader.close()
    loader.close()
    assert len(prefetch_threads()) == before
    assert loader.state() == state
    with pytest.raises(ValueError, match="the loader was closed"):
        next(loader)
    loader = text_loader(listed_documents(TEXTS), byte_tokenizer, seq_len=16, batch_size=2, prefetch=3)
    next(loader)
    del loader
    gc.collect()
    assert len(prefetch_threads()) == before


def test_a_process_ends_cleanly_with_a_loader_left_open():
    program = (
        "from plimsoll.data.text.opening import python_sources\n"
        "from plimsoll.data.text.tokenizer import train_byte_bpe\n"
        "from plimsoll.data.text.loader import text_loader\n"
        "documents = python_sources()\n"
        "tokenizer = train_byte_bpe(documents, 300, sample_bytes=10_000)\n"
        "loader = text_loader(documents, tokenizer, seq_len=64, batch_size=4, prefetch=2)\n"
        "next(loader)\nprint('read')\n"
    )
    assert printed(program) == "read\n"
