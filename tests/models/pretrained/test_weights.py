"""Folders read tensor by tensor: the stored form to the bit, and every kind of bad folder in one paragraph."""

import contextlib
import json
import logging
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.errors import DataError
from plimsoll.models.pretrained import weights
from plimsoll.models.pretrained.weights import kept, load, stored_like
from plimsoll.models.shape import KERNELS, DecoderShape, Rotary
from pretrained_folders import GEMMA_3, LLAMA, QWEN, drawn, write, write_sharded

TIED = DecoderShape(**{**LLAMA.__dict__, "tied": True})


def expected_tree(shape, tensors):
    """The published tensors, stacked and turned, by plain NumPy."""
    of_layers = lambda name: [tensors[f"model.layers.{n}.{name}.weight"] for n in range(shape.layers)]  # noqa: E731
    blocks = {ours: {"kernel": np.stack([x.T for x in of_layers(name)])} for ours, name in KERNELS.items()}
    for ours, name in shape.form.norms.items():
        blocks[ours] = {"scale": np.stack(of_layers(name))}
    for ours in shape.form.biases:
        names = [f"model.layers.{n}.{KERNELS[ours]}.bias" for n in range(shape.layers)]
        blocks[ours]["bias"] = np.stack([tensors[name] for name in names])
    tree = {
        "embedding": tensors["model.embed_tokens.weight"],
        "blocks": blocks,
        "norm": tensors["model.norm.weight"],
    }
    tree = tree if shape.tied else tree | {"head": tensors["lm_head.weight"].T}
    return jax.tree.map(jnp.asarray, tree)


def require_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=str(path))


@pytest.mark.parametrize(
    ("shape", "bits", "piece"),
    [
        *((LLAMA, bits, 700) for bits in (32, 16, 8, 4)),  # in several pieces, with a last one that is not full
        *((LLAMA, bits, 2**20) for bits in (32, 4)),
        *((shape, bits, 700) for shape in (QWEN, GEMMA_3) for bits in (16, 4)),
    ],
    ids=lambda value: getattr(value, "architecture", None),
)
def test_what_is_loaded_is_what_would_be_stored(tmp_path, monkeypatch, shape, bits, piece):
    monkeypatch.setattr(weights, "PIECE", piece)
    monkeypatch.setattr(weights, "PACKED_PIECE", piece)
    tensors = drawn(shape)
    found = load(write(tmp_path, shape, tensors), shape, bits=bits)
    require_same(found, kept(expected_tree(shape, tensors), bits))
    assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, stored_like(shape, bits))
    few = {ours: leaf for (ours, leaf) in shape.block_tensors() if leaf != "kernel"}
    assert {found["blocks"][ours][leaf].dtype for ours, leaf in few.items()} == {np.dtype("float32")}


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_nothing_is_compiled_to_read_them(tmp_path, bits, caplog):
    """A process grows by tens of MiB where it first compiles, and the plan has no room for that."""
    folder, like = write(tmp_path, LLAMA), stored_like(LLAMA, bits)
    with jax.log_compiles(), caplog.at_level(logging.DEBUG):
        load(folder, LLAMA, like=like)
    assert not [record.message for record in caplog.records if "ompil" in record.message]


def test_stacks_are_kept_as_bits_and_tables_as_numbers():
    """A product reads all of a table, and bits would be copied for it; of a stack a layer is read."""
    like = stored_like(DecoderShape(**{**LLAMA.__dict__, "vocab": 4096, "inner": 4096}), 16)
    assert {like["embedding"].dtype, like["head"].dtype} == {np.dtype(jnp.bfloat16)}
    assert {like["blocks"][name]["kernel"].dtype for name in ("gate", "up", "down")} == {np.dtype("uint16")}


def test_shards_give_what_one_file_gives(tmp_path):
    one, many = write(tmp_path / "one", LLAMA), write_sharded(tmp_path / "many", LLAMA)
    assert len(list(many.glob("*.safetensors"))) == 3
    require_same(load(many, LLAMA), load(one, LLAMA))


def test_a_tied_embedding_and_what_old_llamas_keep(tmp_path):
    """Under the name of the head alone, or with another head beside it, which is not read."""
    tensors = drawn(TIED)
    embedding = tensors["model.embed_tokens.weight"]
    as_head = {name: x for name, x in tensors.items() if x is not embedding} | {"lm_head.weight": embedding}
    twice = tensors | {"lm_head.weight": embedding + 1}
    old = tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    for number, named in enumerate((as_head, twice, old)):
        folder = write(tmp_path / str(number), TIED, named)
        require_same(load(folder, TIED), expected_tree(TIED, tensors))


@pytest.mark.parametrize(("prefix", "beside"), [("language_model.", ""), ("", "model.")])
def test_the_language_model_of_a_gemma_3_that_sees_pictures(tmp_path, prefix, beside):
    """Its names as they were first published, and as newer versions of transformers write them."""
    tensors = drawn(GEMMA_3)
    new = lambda name: name.replace("model.", f"{beside}language_model.", 1) if beside else prefix + name  # noqa: E731
    named = {new(name): x for name, x in tensors.items()}
    named |= {f"{beside}vision_tower.x.weight": np.ones(3), f"{beside}multi_modal_projector.y": np.ones(3)}
    require_same(load(write(tmp_path / "sees", GEMMA_3, named), GEMMA_3), expected_tree(GEMMA_3, tensors))
    other = write(tmp_path / "other", QWEN, drawn(QWEN) | {"vision_tower.x.weight": np.ones(3)})
    assert "1 of them differ: vision_tower.x.weight (3) instead of absent" in refusal(other, QWEN)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_halves_are_read_and_bfloat16_stays_what_it_is(tmp_path, dtype):
    tensors = {name: x.astype(dtype) for name, x in drawn(LLAMA).items()}
    folder = write(tmp_path, LLAMA, tensors)
    widened = {name: x.astype(np.float32) for name, x in tensors.items()}
    require_same(load(folder, LLAMA, bits=32), kept(expected_tree(LLAMA, widened), 32))
    require_same(load(folder, LLAMA), kept(expected_tree(LLAMA, widened), 16 if dtype == jnp.bfloat16 else 32))


def refusal(folder, shape=LLAMA):
    with pytest.raises(DataError) as refused:
        load(folder, shape)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_tensors_of_another_model_are_listed_with_their_shapes(tmp_path):
    tensors = drawn(LLAMA)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
    tensors["model.norm.weight"] = np.zeros(16, np.float32)
    said = refusal(write(tmp_path, LLAMA, tensors))
    assert "model.layers.1.mlp.up_proj.weight absent instead of (72, 32)" in said
    assert "model.layers.0.self_attn.q_proj.bias (32) instead of absent" in said
    assert "3 of them differ: " in said
    assert "model.norm.weight (16) instead of (32)" in said
    said = refusal(write(tmp_path, LLAMA, {"model.norm.weight": np.zeros(32, np.float32)}))
    assert "model.embed_tokens.weight absent instead of (90, 32)" in said
    assert "and 21 more" in said
    tensors = drawn(LLAMA) | {"model.norm.weight": np.zeros(32, np.float64)}
    assert "model.norm.weight (F64)" in refusal(write(tmp_path, LLAMA, tensors))


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, np.nan), (np.float16, np.inf), (jnp.bfloat16, np.nan)])
def test_numbers_that_are_not_finite_are_refused(tmp_path, dtype, number):
    tensors = {name: x.astype(dtype) for name, x in drawn(LLAMA).items()}
    tensors["model.layers.2.mlp.up_proj.weight"][5, 6] = number
    assert "model.layers.2.mlp.up_proj.weight in" in refusal(write(tmp_path, LLAMA, tensors))


def test_files_that_are_not_there_or_are_no_safetensors_are_refused(tmp_path):
    assert "is not a folder" in refusal(tmp_path / "nowhere")
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "pytorch_model.bin: pickles" in refusal(tmp_path)
    folder = write_sharded(tmp_path / "sharded", LLAMA)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "3 files, and 1 of them do not lie beside it: model-00002-of-00003.safetensors" in refusal(folder)
    for content in ("{", "{}"):
        (folder / "model.safetensors.index.json").write_text(content)
        assert "is not an index of safetensors" in refusal(folder)
    path = write(tmp_path / "cut", LLAMA) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read as safetensors" in refusal(tmp_path / "cut")


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "deeper/model.safetensors"])
def test_an_index_that_leads_out_of_its_folder(tmp_path, name):
    folder = write_sharded(tmp_path / "here", LLAMA)
    write(tmp_path / "other", LLAMA)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.norm.weight"] = name
    path.write_text(json.dumps(index))
    assert f"do not lie beside it: {name}" in refusal(folder)


SMALL = drawn(DecoderShape(**{**LLAMA.__dict__, "layers": 1, "rotary": Rotary()}))


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_and_never_a_traceback(tmp_path, data):
    shape = DecoderShape(**{**LLAMA.__dict__, "layers": 1})
    path = write(tmp_path, shape, SMALL) / "model.safetensors"
    whole = bytearray(path.read_bytes())
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    how = data.draw(st.sampled_from(["cut", "flip", "length", "header"]))
    if how == "cut":
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif how == "flip":
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    elif how == "length":
        whole[:8] = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)))
    else:
        text = data.draw(st.binary(max_size=60) | st.just(b"[" * 100_000))
        whole = struct.pack("<Q", len(text)) + text + whole[header:]
    path.write_bytes(whole)
    with contextlib.suppress(DataError):
        load(tmp_path, shape)
