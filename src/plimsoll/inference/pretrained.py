"""Use of a pretrained language model without training: the loss of a text, and text after a prompt.

This module imports JAX. The weights stay in memory in the bits per weight in which they are loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from plimsoll.data.text.opening import open_documents
from plimsoll.data.text.scored_text import scored_rows
from plimsoll.data.text.tokenizer import TextTokenizer, load_tokenizer
from plimsoll.errors import DataError, RecipeError
from plimsoll.levers.chunked_loss import chunked_cross_entropy
from plimsoll.models.decoder import Decoder
from plimsoll.models.pretrained.config import read_shape
from plimsoll.models.pretrained.find import find_folder
from plimsoll.models.pretrained.safetensors_folder import checked
from plimsoll.models.pretrained.weights import load
from plimsoll.models.sampling import continued, make_next_token, window_for
from plimsoll.training.memory import peak_resident_bytes
from plimsoll.types import Compute, Levers

LOGITS = 2**24
"""Maximum number of logits in a chunk of the loss: 64 MiB in float32."""
LONGEST = 2048
"""Default number of tokens that the model reads at once, if it can read so many."""


class _Opened(NamedTuple):
    model: Decoder
    params: dict
    tokenizer: TextTokenizer
    begin: int
    """Id of the token before a text: that of the tokenizer, else `bos_token_id` of config.json, else the end of a
    document."""


def evaluate_text(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mean loss per token of a text.

    Args:
        request: `pretrained` (folder or id of the model), `text`, and the other options in `cli/verbs.py`.
    """
    documents = open_documents(
        request["text"], text_column=request["text_column"], max_examples=request["max_examples"]
    )
    opened = _opened(request)
    model, positions = opened.model, opened.model.shape.positions
    seq_len = request["seq_len"] or min(LONGEST, positions)
    if seq_len > positions:
        raise RecipeError(
            f"--seq-len {seq_len:,} is more than the {positions:,} tokens that {request['pretrained']} was made to read"
            f" at once: ask for {positions} or less"
        )
    chunk = max(1, LOGITS // model.shape.vocab)

    @jax.jit
    def summed(params: dict, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = model.hidden(params, inputs).reshape(labels.size, -1)
        return chunked_cross_entropy(
            hidden, model.head_weights(params), labels.reshape(-1), head=model.head, chunk=chunk
        )

    nats, tokens, count, read = 0.0, 0, 0, 0
    options = {"begin": opened.begin, "seq_len": seq_len, "batch_size": request["batch_size"]}
    for rows in scored_rows(documents.pieces(), opened.tokenizer, **options):
        nats += float(summed(opened.params, rows.inputs, rows.labels))
        tokens += int((rows.labels >= 0).sum())
        count, read = count + rows.documents, read + rows.bytes
    if not tokens:
        raise DataError(f"{request['text']} has no token to predict: name a text with words in it")
    loss = nats / tokens
    return {
        "pretrained": request["pretrained"],
        "text": request["text"],
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "bits_per_byte": nats / math.log(2) / read,
        "tokens": tokens,
        "documents": count,
        "seq_len": seq_len,
        "peak_resident_bytes": peak_resident_bytes(),
    }


def sample_text(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request with the text that follows its prompt.

    Args:
        request: `pretrained` (folder or id of the model), `prompt`, and the other options in `cli/verbs.py`.
    """
    opened = _opened(request)
    model, tokenizer = opened.model, opened.tokenizer
    prompt = [opened.begin, *tokenizer.encode(request["prompt"]).tolist()]
    next_token = make_next_token(model, known=tokenizer.size, top_k=request["top_k"])
    options = {name: request[name] for name in ("tokens", "temperature", "seed")}
    length = window_for(len(prompt) + request["tokens"], longest=model.shape.positions)
    ids = list(continued(next_token, opened.params, prompt, length=length, end=tokenizer.end_of_text, **options))
    # Decodes prompt and ids together: decoded alone, ids of a Llama tokenizer lose their leading space.
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *ids])
    text = whole.removeprefix(before) if whole.startswith(before) else tokenizer.decode(ids)
    return {**request, "text": text, "tokens": len(ids), "ended": len(ids) < request["tokens"]}


def _opened(request: Mapping[str, Any]) -> _Opened:
    folder = find_folder(request["pretrained"])
    shape = read_shape(folder)
    checked(folder, shape)  # headers alone: an unusable model is refused before minutes of reading
    tokenizer = load_tokenizer(folder)
    if tokenizer.size > shape.vocab:
        raise DataError(
            f"the tokenizer.json of {folder} has ids up to {tokenizer.size - 1:,}, and the model {shape.vocab:,} rows"
            " for them: they belong to different models. Copy the folder again"
        )
    begin = tokenizer.beginning()
    if begin is None:
        begin = json.loads((folder / "config.json").read_text("utf-8")).get("bos_token_id")
    if not isinstance(begin, int) or not 0 <= begin < tokenizer.size:
        begin = tokenizer.end_of_text
    compute = Compute(platform=jax.default_backend(), levers=Levers(precision=request["precision"]))
    params = load(folder, shape, bits=request["frozen_bits"])
    return _Opened(Decoder(shape, compute, frozen=True), jax.block_until_ready(params), tokenizer, begin)
