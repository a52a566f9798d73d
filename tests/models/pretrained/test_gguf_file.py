"""Models as GGUF files: every tensor read back by its name, the fields llama.cpp needs, what is refused."""

import builtins
import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from chat_files import CHATML, byte_tokenizer
from plimsoll.errors import DataError, RecipeError
from plimsoll.models.pretrained.gguf_file import require_writable, write_gguf
from plimsoll.models.pretrained.gguf_tokenizer import Words
from plimsoll.models.pretrained.shape import PretrainedShape, Rotary
from pretrained_folders import GEMMA_3, LLAMA, QWEN, SIZES, drawn

TOKENIZER = byte_tokenizer([("w", "h")])
VOCAB = TOKENIZER.get_vocab_size() + 3
WORDS = Words(
    content=json.loads(TOKENIZER.to_str()),
    name="tokenizer.json",
    special={},
    beginning=None,
    end=257,
    stops=frozenset([257]),
    template=CHATML,
)


def alternating(period):
    return tuple((layer + 1) % period != 0 for layer in range(3))


SHAPES = {
    "llama": LLAMA,
    "mistral": PretrainedShape(architecture="mistral", **SIZES, windowed=(True,) * 3, window=64),
    "qwen2": QWEN,
    "qwen3": PretrainedShape(architecture="qwen3", **SIZES | {"head_width": 16}),
    "gemma": PretrainedShape(architecture="gemma", **SIZES),
    "gemma2": PretrainedShape(
        architecture="gemma2", **SIZES, windowed=alternating(2), window=4, score_cap=50.0, logit_cap=30.0
    ),
    "gemma3": replace(
        GEMMA_3,
        windowed=(True,) * 3,
        score_scale=8**-0.5,
        rotary=Rotary(theta=1e6, kind="linear", factor=8.0),
        window_rotary=Rotary(),
    ),
}
SHAPES = {name: replace(shape, vocab=VOCAB) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def gguf():
    return pytest.importorskip("gguf", reason="gguf is not installed: pip install 'plimsoll-jax[gguf]'")


def written(gguf, path, shape, kind="f32", tensors=None):
    """Writes a shape's tensors in pieces of 40 rows, and reads the file."""
    tensors = drawn(shape) if tensors is None else tensors

    def pieces(name):
        return (tensors[name][first : first + 40] for first in range(0, len(tensors[name]), 40))

    count = write_gguf(path, shape, pieces, kind=kind, words=WORDS, name="tiny")
    assert count == shape.parameters()
    return gguf.GGUFReader(path)


def fields(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def numbers(gguf, reader):
    return {
        tensor.name: np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in reader.tensors
    }


def halves(rows, width):
    """Rows of a turned kernel in the order of Hugging Face: llama.cpp's pairs are neighbours."""
    return rows.reshape(-1, width // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


THEIR_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def their_name(published, *, both_sides):
    if published in THEIR_NAMES:
        return THEIR_NAMES[published]
    _, _, layer, rest = published.split(".", 3)
    name, _, leaf = rest.rpartition(".")
    after = {"post_attention_layernorm": "post_attention_norm" if both_sides else "ffn_norm"}
    return f"blk.{layer}.{(THEIR_NAMES | after)[name]}.{leaf}"


@pytest.mark.parametrize("name", SHAPES)
def test_every_tensor_is_read_back_by_its_name(gguf, tmp_path, name):
    shape = SHAPES[name]
    published = drawn(shape)
    found = numbers(gguf, written(gguf, tmp_path / "a.gguf", shape))
    for ours, numbers_of in published.items():
        theirs = found.pop(their_name(ours, both_sides=shape.form.norms_after))
        if name in ("llama", "mistral") and ours.endswith(("q_proj.weight", "k_proj.weight")):
            assert not np.array_equal(theirs, numbers_of)
            theirs = halves(theirs, shape.head_width)
        if shape.form.gemma and ours.endswith("norm.weight"):
            theirs = theirs - 1
            np.testing.assert_allclose(theirs, numbers_of, atol=1e-6)
            continue
        np.testing.assert_array_equal(theirs, numbers_of)
    assert found.keys() <= {"rope_freqs.weight"}


def test_frequencies_of_a_llama_3_are_divided_as_ours_are(gguf, tmp_path):
    shape = SHAPES["llama"]
    factors = numbers(gguf, written(gguf, tmp_path / "a.gguf", shape))["rope_freqs.weight"]
    plain = Rotary(theta=shape.rotary.theta).frequencies(shape.head_width)
    np.testing.assert_allclose(plain / factors, shape.rotary.frequencies(shape.head_width), rtol=1e-6)
    assert factors.min() == 1 < factors.max()


def test_the_fields_say_what_llama_cpp_needs_to_know(gguf, tmp_path):
    said = fields(written(gguf, tmp_path / "a.gguf", SHAPES["gemma3"]))
    expected = {
        "general.architecture": "gemma3",
        "general.name": "tiny",
        "gemma3.block_count": 3,
        "gemma3.context_length": 8192,
        "gemma3.embedding_length": 32,
        "gemma3.feed_forward_length": 72,
        "gemma3.attention.head_count": 4,
        "gemma3.attention.head_count_kv": 2,
        "gemma3.attention.key_length": 8,
        "gemma3.attention.value_length": 8,
        "gemma3.attention.sliding_window": 4,
        "gemma3.rope.freq_base": 1e6,
        "gemma3.rope.freq_base_swa": 1e4,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8,
        "gemma3.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.chat_template": CHATML,
    }
    assert {name: said[name] for name in expected} == expected
    assert said["gemma3.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)
    assert len(said["tokenizer.ggml.tokens"]) == VOCAB
    caps = fields(written(gguf, tmp_path / "b.gguf", SHAPES["gemma2"]))
    assert (caps["gemma2.attn_logit_softcapping"], caps["gemma2.final_logit_softcapping"]) == (50, 30)


def test_a_mistral_is_a_llama_up_to_its_window(gguf, tmp_path):
    said = fields(written(gguf, tmp_path / "a.gguf", SHAPES["mistral"]))
    assert (said["general.architecture"], said["llama.context_length"]) == ("llama", 64)


@pytest.mark.parametrize(("kind", "error"), [("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 0.6 / 127)])
def test_kernels_are_written_in_fewer_bits_and_norms_are_not(gguf, tmp_path, kind, error):
    shape = SHAPES["qwen2"]
    published = drawn(shape)
    reader = written(gguf, tmp_path / "a.gguf", shape, kind)
    found, kinds = numbers(gguf, reader), {tensor.name: tensor.tensor_type.name.lower() for tensor in reader.tensors}
    gate = published["model.layers.1.mlp.gate_proj.weight"]
    assert np.abs(found["blk.1.ffn_gate.weight"] - gate).max() <= error * np.abs(gate).max()
    assert kinds["blk.1.ffn_gate.weight"] == kinds["token_embd.weight"] == kind
    assert kinds["blk.1.attn_norm.weight"] == kinds["blk.1.attn_q.bias"] == "f32"
    assert kinds["blk.1.ffn_down.weight"] == ("f16" if kind == "q8_0" else kind)  # 72 columns are no whole blocks


def test_a_weight_too_large_for_float16_is_refused(gguf, tmp_path):
    shape = SHAPES["qwen2"]
    tensors = drawn(shape)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e5
    with pytest.raises(RecipeError, match=r"up_proj.weight has weights beyond 65,504.*--gguf-type bf16 or f32"):
        written(gguf, tmp_path / "a.gguf", shape, "f16", tensors)


def test_no_more_than_a_tensor_is_in_memory(gguf, tmp_path):
    shape = replace(SHAPES["llama"], width=256, inner=1024, layers=12)
    whole, rows = 4 * shape.parameters(), np.ones((40, 1024), np.float32)

    def pieces(name):
        sides = shape.tensors()[name]
        for first in range(0, sides[0], 40):
            size = min(40, sides[0] - first)
            yield rows[:size, : sides[1]] if len(sides) == 2 else np.ones(size, np.float32)

    tracemalloc.start()
    write_gguf(tmp_path / "a.gguf", shape, pieces, kind="bf16", words=WORDS, name="tiny")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "a.gguf").stat().st_size > whole / 2
    assert peak < whole / 8


OTHERS = {
    "order of windows": ("gemma3", {"windowed": (True, False, True)}, "see windows in another order than all but each"),
    "scale": ("gemma2", {"score_scale": 0.1}, r"its scores are scaled by 0\.1 instead of 0\.353"),
    "no caps": ("gemma2", {"logit_cap": 0.0}, "it has no caps of scores and logits"),
    "caps": ("gemma3", {"logit_cap": 30.0}, "it caps its logits"),
    "head": ("gemma", {"tied": False}, "it has an output layer of its own"),
    "gelu": ("gemma2", {"exact_gelu": True}, "its gate is GELU itself, not its approximation by tanh"),
    "positions": ("qwen2", {"rotary": LLAMA.rotary}, "its positions are stretched as a Llama's"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_shape_of_which_llama_cpp_would_compute_something_else_is_refused(gguf, name):
    architecture, changed, reason = OTHERS[name]
    with pytest.raises(DataError, match=rf"a {architecture} of this shape cannot be written as GGUF.*{reason}.*--merg"):
        require_writable(replace(SHAPES[architecture], **changed), WORDS)
    require_writable(SHAPES[architecture], WORDS)


def test_without_the_package_it_is_said_how_to_install_it(monkeypatch):
    real = builtins.__import__

    def without(name, *more, **named):
        if name == "gguf":
            raise ImportError(name)
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RecipeError, match=r"--gguf needs the gguf package.*pip install gguf"):
        require_writable(SHAPES["llama"], WORDS)
