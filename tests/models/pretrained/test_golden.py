"""Models of random weights, beside what transformers computed from the same folders; all to 1e-5."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plimsoll.models.decoder import Decoder
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.weights import load
from plimsoll.models.sampling import continued, make_next_token
from plimsoll.types import Compute, Levers

FOLDERS = "llama_tiny", "gemma_tiny"
TUNED = "mistral_tiny", "qwen2_tiny", "qwen3_tiny", "gemma2_tiny", "gemma3_tiny"
"""With gradients of their weights. In rows of 24 tokens, the Gemmas have layers that see 8."""


def opened(folder, *, frozen=True):
    shape = read_shape(folder)
    with np.load(folder / "expected.npz") as file:
        expected = {name: file[name] for name in file.files}
    expected = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in expected.items()}
    return Decoder(shape, Compute(), frozen=frozen), load(folder, shape), expected


@pytest.fixture(scope="module", params=FOLDERS)
def golden(request, shared):
    return opened(shared / "golden" / request.param)


@pytest.fixture(scope="module", params=TUNED)
def tuned(request, shared):
    return opened(shared / "golden/finetune" / request.param, frozen=False)


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


def test_golden_gradients_through_given_vectors(golden):
    model, params, expected = golden
    remat = {"llama": "none", "gemma": "block"}[model.shape.architecture]
    model = Decoder(model.shape, Compute(levers=Levers(remat=remat)), frozen=True)
    mask = expected["attention_mask"]

    def loss(vectors):
        logits = logits_of(model, params, model.hidden(params, inputs_embeds=vectors))
        return jnp.sum(logits * expected["loss_weights"] * mask[..., None].astype(jnp.float32)), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.asarray(expected["inputs_embeds"]))
    require_close(logits, expected["logits_from_embeds"], mask)
    np.testing.assert_allclose(float(value), float(expected["loss"]), rtol=1e-5)
    require_close(gradient, expected["grad_inputs_embeds"], mask)


def by_published_name(shape, tree):
    """The tree of `Decoder` under the names of its folder; kernels stay (in, out)."""
    found = {"model.embed_tokens.weight": tree["embedding"], "model.norm.weight": tree["norm"]}
    for (ours, leaf), (theirs, _) in shape.block_tensors().items():
        found |= {f"model.layers.{n}.{theirs}": x for n, x in enumerate(tree["blocks"][ours][leaf])}
    return found if shape.tied else found | {"lm_head.weight": tree["head"]}


def test_golden_logits_losses_and_gradient_norms(tuned):
    model, params, expected = tuned
    ids, mask = expected["input_ids"], expected["attention_mask"]
    counted = (mask[:, :-1] * mask[:, 1:]).astype(np.float32)
    assert counted.sum() == expected["next_token_count"] < mask.size - len(mask)

    def nll(params):
        logits = logits_of(model, params, model.hidden(params, ids))
        named = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(named * counted), logits

    (total, logits), gradient = jax.jit(jax.value_and_grad(nll, has_aux=True))(params)
    require_close(logits, expected["logits"], mask)
    np.testing.assert_allclose(float(total), float(expected["next_token_nll_sum"]), rtol=1e-5)
    norms = {name: float(jnp.linalg.norm(x)) for name, x in by_published_name(model.shape, gradient).items()}
    assert norms.keys() == set(expected["grad_norm_names"].tolist())
    wanted = dict(zip(expected["grad_norm_names"].tolist(), expected["grad_norms"].tolist(), strict=True))
    assert norms == pytest.approx(wanted, rel=1e-5, abs=1e-5 * max(wanted.values()))


def test_golden_greedy_continuation_of_every_architecture(tuned):
    model, params, expected = tuned
    prompt = expected["input_ids"][0, :8].tolist()
    next_token = make_next_token(model, known=model.shape.vocab)
    go_on = partial(continued, next_token, params, prompt, length=24, end=-1, temperature=0.0, seed=0)
    assert list(go_on(tokens=16)) == expected["greedy"].tolist()


@pytest.mark.slow_cases(*(f"{name}-0-False" for name in TUNED if name != "gemma3_tiny"))
@pytest.mark.parametrize(("chunk", "frozen"), [(0, False), (8, True)])
def test_a_packed_row_gives_what_each_document_gives_alone(tuned, chunk, frozen):
    """Documents of 13, 1 and 10 tokens: longer than the window of a Gemma's layers, and shorter."""
    model, params, expected = tuned
    compute = Compute(levers=Levers(attention_chunk=chunk, remat="block" if frozen else "none"))
    model = Decoder(model.shape, compute, frozen=frozen)
    lengths = (13, 1, 10)
    ids = expected["input_ids"][:1]
    starts = np.cumsum((0, *lengths))[:-1]
    segments = np.repeat(np.arange(3, dtype=np.int32), lengths)[None]
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[None]
    padded = np.zeros((3, 13), np.int32)
    for row, start, n in zip(padded, starts, lengths, strict=True):
        row[:n] = ids[0, start : start + n]
    hidden = jax.jit(model.hidden)
    packed = hidden(params, ids, segments=segments, positions=positions)
    alone = hidden(params, padded)
    alone = np.concatenate([row[:n] for row, n in zip(np.asarray(alone), lengths, strict=True)])[None]
    require_close(packed, alone, np.ones(ids.shape))
    as_one = hidden(params, ids, segments=np.zeros_like(segments), positions=np.arange(24, dtype=np.int32)[None])
    assert np.abs(as_one - packed)[:, starts[1] :].max() > 0.01
