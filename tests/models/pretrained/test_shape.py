"""Configurations of Hugging Face: both ways of writing positions, what is refused and how it is said."""

import jax
import numpy as np
import pytest

from plimsoll.errors import DataError
from plimsoll.models.decoder import Decoder
from plimsoll.models.pretrained.config import read_shape, shape_of
from plimsoll.models.rotary import frequencies
from plimsoll.models.shape import Rotary
from plimsoll.types import Compute
from pretrained_folders import GEMMA_3, LLAMA, QWEN, config_of


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
    gemma = llama | {"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None, "num_key_value_heads": 1}
    gemma["head_dim"] = 16
    found = shape_of(gemma, source="it")
    assert (found.architecture, found.head_width, found.tied) == ("gemma", 16, True)


def test_llama_3_slows_what_turns_rarely_and_leaves_what_turns_often():
    plain = frequencies(Rotary(theta=5e5), 64)
    slowed = frequencies(Rotary(theta=5e5, kind="llama3", factor=32.0), 64)
    turns = 8192 * plain / (2 * np.pi)
    np.testing.assert_array_equal(slowed[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(slowed[turns < 1], plain[turns < 1] / 32, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((slowed < plain) & (slowed > plain / 32))[between].all()


def test_linear_stretching_divides_every_frequency():
    said = config_of(LLAMA, rope_scaling={"type": "linear", "factor": 4.0})
    rotary = shape_of(said, source="it").rotary
    np.testing.assert_allclose(frequencies(rotary, 8), frequencies(Rotary(theta=5e5), 8) / 4, rtol=1e-6)


@pytest.mark.parametrize(("content", "said"), [("{", "cannot be read as JSON"), (None, "has no config.json")])
def test_a_folder_without_a_configuration_is_refused(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(DataError, match=said):
        read_shape(tmp_path)


def test_architectures_have_the_defaults_of_transformers():
    """What is left out by the published files, and by those of models that were tuned from them."""
    llama = config_of(LLAMA, rope_scaling=None)
    of = lambda kind, **changed: shape_of(llama | {"model_type": kind} | changed, source="it")  # noqa: E731
    mistral = of("mistral")
    assert (mistral.windowed, mistral.window) == ((), 4096)  # all layers are alike
    assert of("mistral", sliding_window=None).window == 0
    assert of("qwen2", sliding_window=64).window == 0
    qwen = of("qwen2", use_sliding_window=True, sliding_window=64, max_window_layers=2)
    assert (qwen.windowed, qwen.window, qwen.form.biases) == ((False, False, True), 64, ("query", "key", "value"))
    assert of("qwen2", use_sliding_window=True).window == 0  # the first 28 layers see everything
    assert of("qwen3", head_dim=None).head_width == 128
    gemma = llama | {"hidden_act": None, "tie_word_embeddings": None, "head_dim": None, "num_key_value_heads": 4}
    second = shape_of(gemma | {"model_type": "gemma2"}, source="it")
    assert (second.windowed, second.window, second.head_width) == ((True, False, True), 4096, 256)
    assert (second.score_cap, second.logit_cap, second.score_scale) == (50.0, 30.0, 1 / 16)
    assert second.tied
    uncapped = gemma | {"model_type": "gemma2", "attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert (shape_of(uncapped, source="it").score_cap, shape_of(uncapped, source="it").logit_cap) == (0.0, 0.0)


def test_a_gemma_3_has_two_kinds_of_positions_in_either_way_of_writing_them():
    """Also where only its `text_config` says something, as in those that see pictures."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 7, "sliding_window": 16}
    stretched = {"rope_type": "linear", "factor": 8.0}
    older = sizes | {"model_type": "gemma3_text", "rope_scaling": stretched}
    found = shape_of(older, source="it")
    assert found.rotary == Rotary(theta=1e6, kind="linear", factor=8.0)
    assert found.window_rotary == Rotary()
    assert found.windowed == (True, True, True, True, True, False, True)
    assert (found.vocab, found.heads, found.key_heads, found.head_width, found.tied) == (262_208, 8, 4, 256, True)
    both = {"full_attention": stretched | {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    newer = sizes | {"model_type": "gemma3_text", "rope_parameters": both, "_sliding_window_pattern": 6}
    pictures = {"model_type": "gemma3", "text_config": older, "vision_config": {"hidden_size": 3}}
    assert shape_of(newer, source="it") == shape_of(pictures, source="it") == found
    often = shape_of(older | {"sliding_window_pattern": 2}, source="it")
    assert often.windowed == (True, False, True, False, True, False, True)
    said = older | {"layer_types": ["full_attention"] * 6 + ["sliding_attention"]}
    assert shape_of(said, source="it").windowed == (False,) * 6 + (True,)


LINEAR = {"rope_type": "linear", "factor": 8.0}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SLIDING, FULL = "sliding_attention", "full_attention"
BY_LAYER = {FULL: {"rope_theta": 5e5} | LINEAR, SLIDING: {"rope_theta": 2e4}}
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
MIXED = {"sliding_window_pattern": 2}
"""Layers of both kinds."""
ODD = {
    "llama": [
        ({"rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 5e5}}, "rotary", Rotary(kind="linear", factor=8.0)),
        ({"rope_scaling": LINEAR, "rope_theta": 5e5}, "rotary", Rotary(theta=5e5, kind="linear", factor=8.0)),
        ({"rope_scaling": {}, "rope_parameters": {"rope_theta": 5e5}}, "rotary", Rotary(theta=5e5)),
        ({"rope_parameters": {"type": "linear", "rope_type": "default"}}, "rotary", Rotary()),
        ({"rope_scaling": LLAMA_3}, "rotary", Rotary(kind="llama3", factor=8.0, original=2048)),
        ({"hidden_activation": None, "_name_or_path": "x", "unsloth_fixed": True}, "exact_gelu", False),
        ({"num_key_value_heads": None}, "key_heads", 4),
    ],
    "mistral": [({"num_key_value_heads": None}, "key_heads", 4), ({"sliding_window": None}, "window", 0)],
    "qwen2": [
        ({"num_key_value_heads": None}, "key_heads", 4),
        ({"use_sliding_window": True, "max_window_layers": 0}, "window", 4096),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, "window", 0),
        ({"sliding_window": 8, "layer_types": [FULL] * 3}, "window", 0),
    ],
    "gemma": [({"hidden_act": "gelu", "hidden_activation": "relu"}, "exact_gelu", False)],
    "gemma2": [
        ({"hidden_activation": "gelu", "hidden_act": "relu"}, "exact_gelu", True),
        ({"hidden_act": "gelu"}, "exact_gelu", False),
        ({"layer_types": [FULL] * 3, "sliding_window": None}, "window", 0),
    ],
    "gemma3_text": [
        ({"hidden_activation": "gelu"}, "exact_gelu", True),
        (MIXED | {"rope_parameters": LINEAR | {"rope_theta": 5e5}}, "rotary", Rotary(theta=1e6)),
        (MIXED | {"rope_parameters": BY_LAYER}, "rotary", Rotary(theta=5e5, kind="linear", factor=8.0)),
        (MIXED | {"rope_parameters": BY_LAYER}, "window_rotary", Rotary(theta=2e4)),
        (
            MIXED | {"rope_parameters": BY_LAYER, "rope_scaling": {"factor": 2.0}},
            "rotary",
            Rotary(theta=5e5, kind="linear", factor=2.0),
        ),
        (MIXED | {"rope_scaling": {"type": "linear", "factor": 8.0}}, "rotary", Rotary(theta=1e6)),
        (MIXED | {"rope_local_base_freq": 2e4}, "window_rotary", Rotary(theta=2e4)),
        ({"_sliding_window_pattern": 2}, "window", 4096),
        ({"_sliding_window_pattern": 2}, "rotary", Rotary()),
        ({"sliding_window_pattern": 2}, "windowed", (True, False, True)),
    ],
}
"""Odd fields, and what transformers 5.24 makes of them."""


@pytest.mark.parametrize("kind", ODD)
def test_fields_that_say_the_same_count_as_they_do_in_transformers(kind):
    for changed, name, expected in ODD[kind]:
        assert getattr(shape_of(TINY | {"model_type": kind} | changed, source="it"), name) == expected, changed


REFUSED = [
    ("llama", {"model_type": "mixtral"}, "'mixtral'"),
    ("llama", {"attention_bias": True}, "attention_bias: True"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"hidden_act": "relu"}, "hidden_act silu"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 4}}, "'yarn'"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor is None"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"num_key_value_heads": 3}, "4 query heads cannot share 3"),
    ("llama", {"head_dim": 7}, "no even width"),
    ("llama", {"hidden_size": "wide"}, "hidden_size is 'wide'"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ("llama", {"logits_multiplier": 2.0}, "logits_multiplier"),
    ("llama", {"is_causal": None}, "is_causal: None"),
    ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
    ("mistral", {"layer_types": [FULL] * 3}, "layer_types"),
    ("qwen2", {"layer_types": [SLIDING] * 3}, "no sliding_window"),
    ("qwen3", {"rope_parameters": {FULL: {"rope_theta": 1e4}}}, "rope_parameters"),
    ("gemma2", {"hidden_activation": "relu"}, "hidden_activation"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: 50"),
    ("gemma3_text", {"layer_types": [FULL]}, "layer_types are 1, not one for each of 3 layers"),
    ("gemma3_text", {"layer_types": ["chunked_attention"] * 3}, "'chunked_attention'"),
    ("gemma3_text", {"sliding_window": 0}, "sliding_window is 0"),
    ("gemma3", {"hidden_size": 64}, "hidden_size"),
    ("gemma3", {"text_config": TINY | {"final_logit_softcapping": 30.0}}, "final_logit_softcapping: 30"),
]


@pytest.mark.parametrize(("kind", "changed", "said"), REFUSED)
def test_what_is_not_computed_here_is_refused_by_name_with_what_to_do(kind, changed, said):
    config = {"text_config": TINY} if kind == "gemma3" else TINY
    with pytest.raises(DataError) as refused:
        shape_of(config | {"model_type": kind} | changed, source="there/config.json")
    text = str(refused.value)
    assert said in text
    assert "there/config.json" in text
    assert "se --pretrained" in text or "Take the config.json" in text
    assert "\n" not in text


def test_what_is_in_no_table_and_asks_for_nothing_is_let_be():
    empty = {"rope_interleaved": False, "use_mrope": False, "pruned_heads": {}, "no_repeat_ngram_size": 0}
    carried = {"torch_dtype": "bfloat16", "auto_map": {"AutoModel": "own.py"}, "transformers_version": "4.40"}
    plain = TINY | {"model_type": "llama"}
    assert shape_of(plain | empty | carried, source="it") == shape_of(plain, source="it")


def test_the_head_of_a_gemma_3_that_sees_pictures_is_tied_as_the_outer_settings_say():
    config = {"model_type": "gemma3", "text_config": TINY | {"tie_word_embeddings": False}}
    assert shape_of(config, source="it").tied
    assert not shape_of(config | {"tie_word_embeddings": False}, source="it").tied


@pytest.mark.parametrize("shape", [LLAMA, QWEN, GEMMA_3], ids=lambda shape: shape.architecture)
def test_the_leaves_of_a_shape_are_those_of_its_model(shape):
    tree = jax.eval_shape(Decoder(shape, Compute()).init, jax.random.key(0))
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in paths}
    assert shape.leaves() == found
