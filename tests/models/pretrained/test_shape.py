"""Configurations of Hugging Face: both ways of writing positions, what is refused and how it is said."""

import json

import numpy as np
import pytest

from plimsoll.errors import DataError
from plimsoll.models.pretrained.shape import GEMMA_2B, KNOWN, LLAMA_3_2_1B, Rotary, read_shape, shape_of
from pretrained_folders import LLAMA, config_of


def test_known_shapes_have_the_published_number_of_parameters():
    assert LLAMA_3_2_1B.parameters() == 1_235_814_400
    assert GEMMA_2B.parameters() == 2_506_172_416
    assert set(KNOWN) == {"llama-3.2-1b", "gemma-2b"}


def test_positions_are_read_from_either_way_of_writing_them():
    older = config_of(LLAMA)
    newer = {k: v for k, v in older.items() if k not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = {"rope_theta": older["rope_theta"], **older["rope_scaling"]}
    assert shape_of(older, source="it") == shape_of(newer, source="it") == LLAMA


def test_a_llama_2_says_little_and_a_gemma_less():
    llama = {k: v for k, v in config_of(LLAMA).items() if k not in ("rope_scaling", "rope_theta", "head_dim")}
    del llama["num_key_value_heads"], llama["tie_word_embeddings"]
    found = shape_of(llama, source="it")
    assert (found.key_heads, found.head_width, found.tied, found.rotary) == (4, 8, False, Rotary())
    gemma = llama | {"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None, "head_dim": 16}
    found = shape_of(gemma, source="it")
    assert (found.architecture, found.head_width, found.tied) == ("gemma", 16, True)


def test_llama_3_slows_what_turns_rarely_and_leaves_what_turns_often():
    plain, slowed = Rotary(theta=5e5).frequencies(64), LLAMA_3_2_1B.rotary.frequencies(64)
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_array_equal(slowed[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(slowed[turns < 1], plain[turns < 1] / 32, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((slowed < plain) & (slowed > plain / 32))[between].all()


def test_linear_stretching_divides_every_frequency():
    said = config_of(LLAMA, rope_scaling={"type": "linear", "factor": 4.0})
    rotary = shape_of(said, source="it").rotary
    np.testing.assert_allclose(rotary.frequencies(8), Rotary(theta=5e5).frequencies(8) / 4, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mistral"}, "architecture 'mistral', and Llama 2 to 3.x"),
        ({"model_type": "gemma2"}, "architecture 'gemma2'"),
        ({"model_type": ["llama"]}, "architecture"),
        ({"attention_bias": True}, r"biases of attention \(attention_bias: True\)"),
        ({"mlp_bias": True}, "biases of the feed-forward part"),
        ({"quantization_config": {"bits": 4}}, "another library quantised"),
        ({"hidden_act": "relu"}, "its activation is 'relu', and a llama's is silu"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "stretched by 'yarn'; default, linear and llama3"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "does not say low_freq_factor"),
        ({"rope_scaling": 3}, "rope settings are 3"),
        ({"partial_rotary_factor": 0.5}, "only 0.5 of a head turns"),
        ({"num_key_value_heads": 3}, "4 heads of queries cannot share 3"),
        ({"head_dim": 7}, "no even width"),
        ({"hidden_size": None}, "does not say hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide', not a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, not a whole number of 1 to 10,000"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, not a number above 0"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(changed, said):
    with pytest.raises(DataError, match=said) as refused:
        shape_of(config_of(LLAMA) | changed, source="there/config.json")
    assert "there/config.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"), [("{", "cannot be read as JSON"), ("[1]", "holds list"), (None, "has no config.json")]
)
def test_a_folder_without_a_configuration_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(DataError, match=said):
        read_shape(tmp_path)


def test_what_is_read_is_what_was_written(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of(LLAMA)))
    assert read_shape(tmp_path) == LLAMA
