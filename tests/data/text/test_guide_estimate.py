"""The guide's function gives the guide's numbers, and ours beside them are those the planner charges."""

import numpy as np
import pytest

import plimsoll
from making import made
from plimsoll.data.loader_bytes import loader_bytes, tokenizer_bytes
from plimsoll.errors import RecipeError
from plimsoll.units import MIB


def test_the_guides_own_example():
    found = plimsoll.estimate_memory_usage(100_000, 128, 32)
    assert found["full_load_mb"] == 97.65625
    assert found["streaming_mb"] == 0.03125
    assert found["memory_savings"] == "100.0%"
    assert found["chunk_1000"] == 0.9765625
    assert list(found)[:7] == [
        "full_load_mb", "streaming_mb", "memory_savings", "chunk_1000", "chunk_5000", "chunk_10000", "chunk_50000",
    ]  # fmt: skip


def test_ours_is_what_a_plan_charges_for_the_same_data():
    recipe = made(
        "stories", seq_len=128, batch_size=32, vocab_size=10_000, target_params=5_000_000, validation_tokens=0
    )
    charged = recipe.data.memory(None, recipe.reading, prefetch=2).bytes
    assert plimsoll.estimate_memory_usage(100_000, 128, 32)["plimsoll_streaming_mb"] == charged / MIB


@pytest.mark.parametrize(
    "changed",
    [{"num_sequences": 0}, {"shuffle_buffer_size": -5}, {"prefetch": -1}, {"vocab_size": 0}, {"num_sequences": 10}],
)
def test_what_no_loader_could_hold_is_refused(changed):
    with pytest.raises(RecipeError, match="batch_size 32 at most num_sequences"):
        plimsoll.estimate_memory_usage(**({"num_sequences": 100_000, "seq_len": 128, "batch_size": 32} | changed))


@pytest.mark.parametrize(("vocab_size", "id_bytes"), [(None, 4), (65_536, 2), (65_537, 4), (300, 2)])
def test_the_bytes_of_a_loader_by_hand(vocab_size, id_bytes):
    """Windows of 11 ids and 160 bytes, 100 in the buffer and 3 in a batch; 2 + 2 batches of two arrays of int32."""
    shape = {"seq_len": 10, "batch_size": 3, "prefetch": 2, "vocab_size": vocab_size}
    window, batch = 11 * id_bytes + 160, 2 * 4 * 3 * 10
    assert loader_bytes(shuffle_buffer_size=100, **shape) == 103 * window + 4 * batch
    assert loader_bytes(shuffle_buffer_size=2, **shape) == 5 * window + 4 * batch
    for unbuffered in (0, 1):
        assert loader_bytes(shuffle_buffer_size=unbuffered, **shape) == 3 * window + 4 * batch
    resident = loader_bytes(shuffle_buffer_size=100, resident_tokens=1_000, **shape)
    assert resident == 3 * window + 4 * batch + 1_000 * id_bytes


def test_a_tokenizer_has_2_mib_and_340_bytes_a_token():
    assert tokenizer_bytes(4_096) == 2 * 2**20 + 340 * 4_096


def test_the_guides_figures_by_hand():
    """4,000 sequences of 64, ids of two bytes, two arrays: 256 bytes each; the buffer holds all 4,000 of them."""
    found = plimsoll.estimate_memory_usage(4_000, 64, 8, "int16", prefetch=0, vocab_size=1)
    text = 6 * MIB + 2 * MIB + 340
    streaming = text + 4_008 * (65 * 2 + 160) + 2 * (2 * 4 * 8 * 64)
    whole = text + 8 * (65 * 2 + 160) + 2 * (2 * 4 * 8 * 64) + 4_000 * 64 * 2
    assert found == {
        "full_load_mb": 4_000 * 256 / MIB, "streaming_mb": 8 * 256 / MIB, "memory_savings": "99.8%",
        "chunk_1000": 1_000 * 256 / MIB, "chunk_5000": 5_000 * 256 / MIB, "chunk_10000": 10_000 * 256 / MIB,
        "chunk_50000": 50_000 * 256 / MIB, "plimsoll_streaming_mb": streaming / MIB,
        "plimsoll_full_load_mb": whole / MIB,
    }  # fmt: skip


def test_the_smallest_counts_are_counts_and_may_be_those_of_an_array():
    least = plimsoll.estimate_memory_usage(np.int64(1), 1, 1, shuffle_buffer_size=0, prefetch=0, vocab_size=1)
    assert least["full_load_mb"] == 8 / MIB
