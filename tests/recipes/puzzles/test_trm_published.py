"""Published checkpoints load by name, turned the right way round; what is another model's is refused by name."""

import re

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.published import TABLE, names, placed, read
from trm_golden import VARIANTS, Golden, distance

STRICT = True


@pytest.fixture(scope="module", params=VARIANTS)
def golden(request, shared):
    return Golden(shared, request.param)


def written(folder, tensors, *, prefix=""):
    path = folder / "model.safetensors"
    save_file({prefix + name: np.ascontiguousarray(value) for name, value in tensors.items()}, path)
    return path


@pytest.mark.parametrize("prefix", ["", "model.", "_orig_mod.model."])
def test_golden_a_published_file_gives_the_published_logits(golden, tmp_path, prefix):
    drawn = jax.eval_shape(golden.task().init, jax.random.key(0))
    params = placed(read(written(tmp_path, golden.tensors(), prefix=prefix)), drawn, golden.shape, source="it")
    assert jax.tree.structure(params) == jax.tree.structure(drawn)
    logits, q = jax.jit(golden.task().network.answered)(params["trainable"], golden.carry(0)["high"])
    assert distance(logits, golden.file["step0/logits"]) < 1e-5
    assert distance(q, golden.file["step0/q_halt_logits"]) < 1e-5
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(golden.params()), strict=True):
        np.testing.assert_array_equal(one, other)


def test_golden_every_weight_has_a_name_and_every_name_a_weight(golden):
    assert names(golden.shape).keys() == golden.tensors().keys()


def test_the_table_of_another_data_set_is_left_as_it_was_drawn(golden):
    tensors = golden.tensors() | {TABLE: np.ones((golden.shape.identifiers + 1, golden.shape.row_width), np.float32)}
    drawn = jax.tree.map(np.asarray, golden.params())
    params = placed(tensors, drawn, golden.shape, source="it")
    np.testing.assert_array_equal(params["tables"]["puzzles"], drawn["tables"]["puzzles"])


def test_another_model_is_refused_by_what_it_lacks_and_has(golden):
    tensors = golden.tensors()
    del tensors["inner.lm_head.weight"]
    tensors["inner.H_level.layers.0.mlp.down_proj.weight"] = np.ones(3, np.float32)
    with pytest.raises(DataError) as refused:
        placed(tensors, golden.params(), golden.shape, source="it.safetensors")
    for words in ("it has no inner.lm_head.weight", "inner.H_level", "1 missing, 1 unknown", "--variant"):
        assert words in str(refused.value)


def test_another_size_is_refused_with_both(golden):
    vocab, width = golden.shape.vocab, golden.shape.width
    tensors = golden.tensors() | {"inner.lm_head.weight": np.ones((vocab + 1, width), np.float32)}
    words = f"inner.lm_head.weight is {(vocab + 1, width)}, and this model's is {(vocab, width)}"
    with pytest.raises(DataError, match=re.escape(words)):
        placed(tensors, golden.params(), golden.shape, source="it")


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path):
    path = tmp_path / "step_65100.pt"
    path.write_bytes(b"\x80\x02")
    with pytest.raises(DataError) as refused:
        read(path)
    assert "safetensors.torch" in str(refused.value)
    assert "is not loaded" in str(refused.value)


def test_a_file_that_is_not_there_or_torn_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        read(tmp_path / "none.safetensors")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"\xff" * 40)
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        read(torn)
