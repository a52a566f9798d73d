"""Windows, one after another, are the token stream; from every position; for every stride; every epoch."""

import gc
import itertools
import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.text.documents import is_held_out
from plimsoll.data.text.survey import count_windows
from plimsoll.data.text.windows import BLOCK, TokenWindows
from plimsoll.errors import DataError, RecipeError

texts = st.lists(st.text("abc \n", min_size=1, max_size=30).filter(str.strip), min_size=1, max_size=30)


@settings(max_examples=examples(150), deadline=None)
@given(
    texts,
    st.integers(1, 9),
    st.integers(1, 40),
    st.sampled_from([1, 5, 40]),
    st.sampled_from([1, 2, 5]),
    st.data(),
)
def test_from_every_position_windows_are_the_token_stream_in_every_epoch(
    byte_tokenizer, listed_documents, texts, seq_len, stride, block, threads, data
):
    files = texts[::2], texts[1::2]
    parts = [[*byte_tokenizer.encode(text), 256] for file in files for text in file if not is_held_out(text)]
    stream = np.array(list(itertools.chain(*parts)), np.int32)
    count = count_windows(len(stream), seq_len=seq_len, stride=stride)
    if not count:
        return
    one = [stream[start : start + seq_len + 1] for start in range(0, count * stride, stride)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plimsoll.data.text.windows.BLOCK", block)
        sizes = {"seq_len": seq_len, "stride": stride, "threads": threads}
        windows = TokenWindows(listed_documents(*files), byte_tokenizer, **sizes)
        stopped = iter(windows)
        at = data.draw(st.integers(0, 2 * count))
        read = list(itertools.islice(stopped, at))
        resumed = iter(windows)
        resumed.set_state(json.loads(json.dumps(stopped.get_state())))
        assert resumed.get_state() == stopped.get_state()
        read += list(itertools.islice(resumed, 3 * count - at))
        np.testing.assert_array_equal(read, one * 3)


def test_the_state_names_the_block_of_the_next_token(byte_tokenizer, listed_documents):
    texts = [f"{i:03d}" * 2000 for i in range(40)]
    windows = iter(TokenWindows(listed_documents(texts), byte_tokenizer, seq_len=100))
    for _ in range(1500):
        next(windows)
        assert windows.get_state()["skip"] <= BLOCK + 6001
    assert windows.get_state()["position"]["documents"] > 20


def test_windows_skip_held_out_documents(byte_tokenizer, listed_documents):
    texts = [f"document {i}\n" for i in range(900)]
    expected = "".join(text + "<|endoftext|>" for text in texts if not is_held_out(text))
    count = len(byte_tokenizer.encode(expected.replace("<|endoftext|>", "."))) - 1
    windows = itertools.islice(TokenWindows(listed_documents(texts), byte_tokenizer, seq_len=1), count)
    text = byte_tokenizer.decode(np.concatenate([window[:-1] for window in windows]))
    assert text + "<|endoftext|>" == expected


def test_a_window_longer_than_the_text_is_refused(byte_tokenizer, listed_documents):
    windows = iter(TokenWindows(listed_documents(["abc"]), byte_tokenizer, seq_len=8))
    with pytest.raises(DataError, match=r"a list has 4 tokens for training, fewer than the 9 of one window"):
        next(windows)


@pytest.mark.parametrize("wrong", [{"seq_len": 0}, {"seq_len": 8, "stride": 0}])
def test_lengths_must_be_positive(byte_tokenizer, listed_documents, wrong):
    with pytest.raises(RecipeError, match=r"must be 1 or more, got 0"):
        TokenWindows(listed_documents(["abc"]), byte_tokenizer, **wrong)


def test_threads_end_with_the_windows(byte_tokenizer, listed_documents):
    before = threading.active_count()
    windows = iter(TokenWindows(listed_documents(["a text " * 5000] * 4), byte_tokenizer, seq_len=5, threads=3))
    next(windows)
    assert threading.active_count() > before
    windows.set_state(windows.get_state())
    gc.collect()
    assert threading.active_count() == before
