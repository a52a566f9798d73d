"""Samples from a model of recurrences, a token at a time. The cost of a token does not grow with the text.

The memory of a recurrence is its states. The memory of an attention layer is the keys and values of the latest `window`
tokens (as many as a training window, if the layer attends to all earlier tokens).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from plimsoll.models.decoder import Block, Places
from plimsoll.models.rotary import rotary_angles
from plimsoll.models.sampling import sampled_id
from plimsoll.recipes import writing
from plimsoll.recipes.longcontext.eigen import EigenBlock, Group
from plimsoll.recipes.longcontext.task import LongTokens

Memory = dict[str, Any]
"""`position` of the next token, and `blocks`: the memory of each block, with a leading axis of blocks."""


class Stream:
    """Incremental decoding: applies the model's decoder to new tokens, given a memory of the earlier ones."""

    def __init__(self, task: LongTokens, *, context: int) -> None:
        """Takes `context`: the number of tokens that a layer sees if it attends to all earlier ones."""
        self.model = task.model
        self.decoder = task.decoder
        self.shape = task.decoder.shape
        self.window = self.model.attention_window or context

    def start(self, examples: int = 1) -> Memory:
        """Returns the memory before the first token."""
        shape = self.shape
        lead = (self.decoder.blocks, examples)
        states: Complex[Array, "blocks batch states"] = jnp.zeros((*lead, self.model.states), jnp.complex64)
        blocks: Any = states
        if self.model.attention_every:
            kept = jnp.zeros((*lead, shape.heads, self.window, shape.head_width))
            blocks = {f"recurrent_{number}": states for number in range(self.model.attention_every - 1)}
            blocks["attending"] = {"keys": kept, "values": kept}
        return {"position": jnp.int32(0), "blocks": blocks}

    def hidden(
        self, params: dict, memory: Memory, ids: Int[Array, "batch length"]
    ) -> tuple[Float[Array, "batch length width"], Memory]:
        """Applies the model to the tokens `ids` after those in memory.

        Returns their hidden states, as `Decoder.hidden` does, and the new memory.
        """
        position = memory["position"]
        stacked = self.decoder.stacked

        def one_block(x: Array, weights_and_memory: tuple[dict, Any]) -> tuple[Array, Any]:
            weights, before = weights_and_memory
            if isinstance(stacked, EigenBlock):
                return stacked.onward(weights, x, before)
            assert isinstance(stacked, Group)
            after = {}
            for name, block in stacked.recurrent.items():
                x, after[name] = block.onward(weights[name], x, before[name])
            x, after["attending"] = self._attended(
                stacked.attending, weights["attending"], x, before["attending"], position
            )
            return x, after

        x, blocks = jax.lax.scan(one_block, self.decoder.embedded(params, ids), (params["blocks"], memory["blocks"]))
        return self.decoder.normed(params, x), {"position": position + ids.shape[1], "blocks": blocks}

    def _attended(
        self, block: Block, weights: dict, x: Array, before: dict[str, Array], position: Array
    ) -> tuple[Array, Any]:
        """Returns the attention layer's output for the new tokens `x`, and its new memory."""
        new = jnp.arange(x.shape[1], dtype=jnp.int32)
        places = Places(rotary_angles(position + new, self.shape.head_width, self.shape.rotary))
        projected = block.projected(weights, x, places)
        query, key, value = (y.astype(jnp.float32) for y in projected)
        keys = jnp.concatenate([before["keys"], key], axis=2)
        values = jnp.concatenate([before["values"], value], axis=2)
        apart = self.window + new[:, None] - jnp.arange(keys.shape[2], dtype=jnp.int32)
        seen = (apart >= 0) & (apart < self.window) & (apart <= position + new[:, None])
        scores = jnp.einsum("bhqw,bhkw->bhqk", query * self.shape.head_width**-0.5, keys, precision="highest")
        shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("bhqk,bhkw->bhqw", shares, values, precision="highest")
        x = block.fed(weights, block.written(weights, x, mixed.astype(x.dtype)))
        return x, {"keys": keys[:, :, -self.window :], "values": values[:, :, -self.window :]}


def continued(
    task: LongTokens,
    params: dict,
    prompt: Sequence[int],
    *,
    length: int,
    known: int,
    end: int,
    tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> Iterator[int]:
    """Yields at most `tokens` ids that follow the prompt, sampled as in `sampling.continued`.

    The id `end` ends the text and is not yielded. A layer that attends to all earlier tokens sees the latest `length`.
    """
    stream = Stream(task, context=length)
    rows = min(known, stream.shape.vocab)

    @jax.jit
    def next_token(params: dict, memory: Memory, ids: Array, seed: Array, index: Array, temperature: Array) -> Any:
        hidden, memory = stream.hidden(params, memory, ids)
        logits = stream.decoder.logits(params, hidden[0, -1:])[0]
        return sampled_id(logits[:rows], top_k=top_k, seed=seed, index=index, temperature=temperature), memory

    memory = stream.start()
    ids = np.asarray([prompt], np.int32)  # all of the prompt at once, then a token at a time
    for index in range(tokens):
        settings = np.uint32(seed % 2**32), np.int32(index), np.float32(temperature)
        sampled, memory = next_token(params, memory, ids, *settings)
        token = int(sampled)
        if token == end:
            return
        yield token
        ids = np.asarray([[token]], np.int32)


sample = partial(writing.sample, go_on=continued)
"""Function of a trained run and a request that returns the text after a prompt (`recipes.writing.sample`)."""
shown = partial(writing.texts, answer=sample)
"""Function of a trained run that returns a report's exhibit of sampled texts."""
