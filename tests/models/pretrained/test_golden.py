"""A Llama and a Gemma of random weights, beside what transformers computed from the same folders; all to 1e-5."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.models.pretrained.model import Pretrained
from plimsoll.models.pretrained.shape import read_shape
from plimsoll.models.pretrained.weights import load
from plimsoll.models.sampling import continued, make_next_token
from plimsoll.types import Compute

FOLDERS = "llama_tiny", "gemma_tiny"


@pytest.fixture(scope="module", params=FOLDERS)
def golden(request, shared):
    folder = shared / "golden" / request.param
    shape = read_shape(folder)
    with np.load(folder / "expected.npz") as file:
        expected = {name: file[name] for name in file.files}
    expected = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in expected.items()}
    return Pretrained(shape, Compute()), load(folder, shape), expected


def require_close(found, expected, mask):
    seen = np.asarray(mask, bool)
    found, expected = np.asarray(found)[seen], expected[seen]
    assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def logits_of(model, params, hidden):
    return model.logits(params, hidden.reshape(-1, hidden.shape[-1])).reshape(*hidden.shape[:2], -1)


def test_golden_hidden_states_and_logits(golden):
    model, params, expected = golden
    mask = expected["attention_mask"]
    assert 0 < mask.sum() < mask.size  # there is padding, which must not be seen
    hidden = jax.jit(model.hidden)(params, expected["input_ids"])
    require_close(hidden, expected["last_hidden"], mask)
    require_close(jax.jit(partial(logits_of, model))(params, hidden), expected["logits"], mask)


def test_golden_first_block(golden):
    model, params, expected = golden

    @jax.jit
    def one_block(params, ids):
        first = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
        return model.block(first, model.embedded(params, ids), model.angles(ids.shape[1]))

    require_close(one_block(params, expected["input_ids"]), expected["hidden_1"], expected["attention_mask"])


@pytest.mark.parametrize("remat", ["none", "block"])
def test_golden_gradients_through_given_vectors(golden, remat):
    model, params, expected = golden
    model = Pretrained(model.shape, Compute(remat=remat))
    mask = expected["attention_mask"]

    def loss(vectors):
        logits = logits_of(model, params, model.hidden(params, inputs_embeds=vectors))
        return jnp.sum(logits * expected["loss_weights"] * mask[..., None].astype(jnp.float32)), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(expected["inputs_embeds"]))
    require_close(logits, expected["logits_from_embeds"], mask)
    np.testing.assert_allclose(float(value), float(expected["loss"]), rtol=1e-5)
    require_close(gradient, expected["grad_inputs_embeds"], mask)


def test_golden_greedy_continuation(golden):
    model, params, expected = golden
    prompt, wanted = expected["input_ids"][0, :8].tolist(), expected["greedy"][0].tolist()
    assert wanted[:8] == prompt
    next_token = make_next_token(model, known=model.shape.vocab)
    go_on = partial(continued, next_token, params, prompt, length=24, end=-1, temperature=0.0, seed=0)
    assert list(go_on(tokens=16)) == wanted[8:]
