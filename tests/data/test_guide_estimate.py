"""The guide's function gives the guide's numbers, and ours beside them are those the planner charges."""

import pytest

import plimsoll
from plimsoll.data.loader_bytes import TEXT_IN_FLIGHT, loader_bytes, tokenizer_bytes
from plimsoll.errors import RecipeError
from plimsoll.recipes.stories import Text
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


def test_ids_of_two_bytes_halve_the_guides_figures_and_not_ours():
    wide, narrow = (plimsoll.estimate_memory_usage(5_000, 64, 8, dtype) for dtype in ("int32", "int16"))
    assert narrow["full_load_mb"] == wide["full_load_mb"] / 2
    assert narrow["memory_savings"] == wide["memory_savings"] == "99.8%"
    assert narrow["plimsoll_streaming_mb"] == wide["plimsoll_streaming_mb"]


def test_ours_is_what_a_plan_charges_for_the_same_data():
    recipe = Text(seq_len=128, batch_size=32, vocab_size=10_000, target_params=5_000_000, validation_tokens=0)
    charged = recipe.host_bytes(None, prefetch=2)["data"]
    assert plimsoll.estimate_memory_usage(100_000, 128, 32)["plimsoll_streaming_mb"] == charged / MIB


def test_the_set_loaded_whole_is_one_array_of_ids():
    found = plimsoll.estimate_memory_usage(100_000, 128, 32)["plimsoll_full_load_mb"]
    options = {"seq_len": 128, "batch_size": 32, "prefetch": 2, "vocab_size": 10_000}
    beside = TEXT_IN_FLIGHT + tokenizer_bytes(10_000) + loader_bytes(shuffle_buffer_size=0, **options)
    assert found == pytest.approx((2 * 100_000 * 128 + beside) / MIB)


def test_a_set_smaller_than_the_buffer_fills_it_no_further():
    few, more = (plimsoll.estimate_memory_usage(count, 128, 32)["plimsoll_streaming_mb"] for count in (100, 20_000))
    assert few < more == plimsoll.estimate_memory_usage(30_000, 128, 32)["plimsoll_streaming_mb"]


def test_nothing_to_load_is_refused():
    with pytest.raises(RecipeError, match="num_sequences must be 1 or more, got 0"):
        plimsoll.estimate_memory_usage(0, 128, 32)
