"""`--pretrained` and `export`: a folder's loss and text, a run as a folder that gives the run's logits."""

import json
import math

import jax
import numpy as np
import pytest

from commands import answer
from plimsoll.data.text.tokenizer import load_tokenizer
from plimsoll.inference.trained import Trained
from plimsoll.levers.weight_bits import readable
from plimsoll.models.decoder import Decoder
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.weights import load
from plimsoll.types import Compute
from small_tasks import parameters_of


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "folder"
    written = answer("export", tiny_run, "--merged", folder)["merged"]
    assert written["out"] == str(folder)
    assert written["parameters"] == parameters_of(read_shape(folder))
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("scored") / "text.txt"
    path.write_text("the cat sat on the mat\n\na dog ran under the tree and then saw a big red house\n")
    return path


def read_back(folder):
    shape = read_shape(folder)
    return Decoder(shape, Compute(), frozen=True), load(folder, shape)


def test_an_exported_run_read_back_gives_the_runs_logits(tiny_run, exported):
    trained = Trained(str(tiny_run), step="best")
    task = trained.recipe.task(trained.plan.compute("cpu"))
    params = readable(trained.params()["trainable"])
    model, published = read_back(exported)
    ids = np.random.default_rng(0).integers(0, model.shape.vocab, (2, 30)).astype(np.int32)

    def logits(which, params):
        hidden = which.hidden(params, ids)
        return which.logits(params, hidden.reshape(-1, hidden.shape[-1]))

    found = jax.jit(lambda tree: logits(model, tree))(published)
    expected = jax.jit(lambda tree: logits(task.decoder, tree))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected).max() > 0.01


def test_an_exported_folder_has_what_transformers_asks_for(tiny_run, exported):
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    tokenizer = load_tokenizer(exported)
    assert config["bos_token_id"] == config["eos_token_id"] == tokenizer.end_of_text
    assert json.loads((exported / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert (exported / "tokenizer.json").read_text() == (tiny_run / "tokenizer.json").read_text()


def test_the_loss_of_a_text_is_that_of_its_documents_one_by_one(exported, text):
    found = answer("evaluate", "--pretrained", exported, "--text", text, "--batch-size", 3, "--seq-len", 7)
    model, params = read_back(exported)
    tokenizer = load_tokenizer(exported)
    documents = text.read_text().split("\n\n")
    windows = []
    for document in documents:
        ids = tokenizer.encode(document.strip())
        windows += [ids[first : first + 7] for first in range(0, len(ids), 7)]
    nats = 0.0
    for window in windows:
        inputs = np.array([[tokenizer.end_of_text, *window[:-1]]], np.int32)
        logits = model.logits(params, jax.jit(model.hidden)(params, inputs)[0])
        nats -= float(jax.nn.log_softmax(logits)[np.arange(len(window)), window].sum())
    tokens = sum(map(len, windows))
    assert (found["tokens"], found["documents"], found["seq_len"]) == (tokens, len(documents), 7)
    assert found["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    size = sum(len(document.strip()) for document in documents)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert found["peak_resident_bytes"] > 2**26


def test_in_fewer_bits_the_loss_is_nearly_the_same(exported, text):
    whole, few = (answer("evaluate", "--pretrained", exported, "--text", text, "--frozen-bits", b) for b in (32, 8))
    assert few["loss"] != whole["loss"]
    assert few["loss"] == pytest.approx(whole["loss"], rel=0.01)


def test_sampling_writes_what_the_run_writes(tiny_run, exported):
    """At temperature 0, of the same weights after the same token: an empty prompt is the end of a document."""
    options = ("--temperature", 0, "--tokens", 12)
    run, folder = answer("sample", tiny_run, *options), answer("sample", "--pretrained", exported, *options)
    assert folder["text"] == run["text"]
    assert folder["tokens"] == run["tokens"]
