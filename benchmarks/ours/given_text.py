"""The `stories` recipe on tokens, an order of windows and initial weights that are given, not made.

The model, the task, the optimizer, batching, prefetching and everything around them are the recipe's own. What
is given lies in the run folder under the names below; the weights become a checkpoint of step 0, which the
training process restores like any other.

That checkpoint is written by a process of its own, `benchmarks/sides.py given_text RUN`, because it needs JAX.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import grain
import numpy as np

from plimsoll.data.loader_bytes import loader_bytes
from plimsoll.data.text.loader import TextLoader, batched
from plimsoll.models.sizing import DecoderShape
from plimsoll.optimizers.adamw import AdamW
from plimsoll.processes import environment
from plimsoll.recipes.base import Prepared, Say
from plimsoll.recipes.saved import to_dict
from plimsoll.recipes.text.recipe import Text

SIDES = str(Path(__file__).resolve().parents[1] / "sides.py")
TOKENS, ORDER, WEIGHTS = "tokens.npy", "order.npy", "weights.npz"


@dataclass(frozen=True, kw_only=True)
class GivenText(Text):
    """`vocab_size`, `width`, `layers`, `heads` and `inner` say the model; the paths are the run folder's."""

    kind: ClassVar[str] = "given-text"

    inner: int = 0
    """Of the feed-forward layers; the recipe itself would choose it by the width."""
    beta1: float = 0.9
    epsilon: float = 1e-8
    final_fraction: float = 0.1
    token_count: int = 0
    """Tokens of the text, which stay in memory and are charged."""

    @cached_property
    def shape(self) -> DecoderShape:
        return DecoderShape(
            vocab=self.vocab_size, width=self.width, layers=self.layers, heads=self.heads, inner=self.inner,
            tied=self.tied,
        )  # fmt: skip

    @property
    def adamw(self) -> AdamW:
        return AdamW(
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            final_fraction=self.final_fraction,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            clip_norm=self.clip_norm or None,
        )

    def prepare(self, folder: Path, say: Say) -> Prepared:
        if (folder / WEIGHTS).exists():
            say("writing the given weights as the checkpoint of step 0")
            (folder / "recipe.json").write_text(json.dumps(to_dict(self)))  # for the process that writes them
            command = [sys.executable, SIDES, "given_text", str(folder)]
            subprocess.run(command, env=environment.for_processes("cpu"), check=True, stdout=sys.stderr)
        return Prepared(steps=self.steps, steps_per_epoch=None)

    def source(self, folder: Path, *, prefetch: int) -> TextLoader:
        windows = OrderedWindows(np.load(folder / TOKENS), np.load(folder / ORDER), seq_len=self.seq_len)
        batches = batched(windows, batch_size=self.effective_batch, seq_len=self.seq_len)
        return TextLoader(batches, prefetch=prefetch)

    def validation(self, folder: Path, *, examples: int) -> tuple:
        return ()  # neither side evaluates

    def host_bytes(self, prepared: Prepared | None, *, prefetch: int) -> dict[str, int]:
        loader = loader_bytes(
            seq_len=self.seq_len, batch_size=self.effective_batch, shuffle_buffer_size=0, prefetch=prefetch
        )
        return {"data": loader + 4 * self.token_count + 8 * self.steps * self.effective_batch}

    def imports(self) -> tuple[str, ...]:
        return ()


class OrderedWindows(grain.IterDataset):
    """Windows of `seq_len + 1` tokens in the order that is given; ends with it."""

    def __init__(self, tokens: np.ndarray, order: np.ndarray, *, seq_len: int) -> None:
        super().__init__()
        self.tokens, self.order, self.seq_len = tokens, order.reshape(-1), seq_len

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self)


class _Iterator(grain.DatasetIterator):
    def __init__(self, windows: OrderedWindows) -> None:
        super().__init__()
        self._of, self._drawn = windows, 0

    def __next__(self) -> np.ndarray:
        of = self._of
        if self._drawn >= len(of.order):
            raise StopIteration
        start = int(of.order[self._drawn]) * of.seq_len
        self._drawn += 1
        return of.tokens[start : start + of.seq_len + 1]

    def get_state(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        self._drawn = state["drawn"]


def decoder_params(weights: dict[str, np.ndarray], *, layers: int) -> dict[str, Any]:
    """Our parameter tree from weights named and shaped as in LlamaForCausalLM: (out, in) becomes (in, out)."""

    def stacked(name: str, *, transpose: bool) -> np.ndarray:
        every = (weights[f"model.layers.{index}.{name}.weight"] for index in range(layers))
        return np.stack([one.T if transpose else one for one in every])

    kernels = {
        "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj",
        "out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    }  # fmt: skip
    norms = {"attention_norm": "input_layernorm", "feed_norm": "post_attention_layernorm"}
    blocks = {ours: {"kernel": stacked(theirs, transpose=True)} for ours, theirs in kernels.items()}
    blocks |= {ours: {"scale": stacked(theirs, transpose=False)} for ours, theirs in norms.items()}
    params = {
        "embedding": weights["model.embed_tokens.weight"],
        "blocks": blocks,
        "norm": weights["model.norm.weight"],
    }
    if "lm_head.weight" in weights:
        params["head"] = weights["lm_head.weight"].T
    return params


def side() -> None:
    """The recipe's own initial state with the given weights in it, saved as the checkpoint of step 0."""
    import jax

    from plimsoll.files.run_folder import RunFolder
    from plimsoll.recipes.saved import from_dict
    from plimsoll.training.checkpoints import Checkpoints
    from plimsoll.training.step import make_init
    from plimsoll.types import Compute

    folder = Path(sys.argv[1])
    recipe = from_dict(json.loads((folder / "recipe.json").read_text()))
    task, optimizer = recipe.task(Compute()), recipe.update_rule(recipe.steps)
    state = jax.jit(make_init(task, optimizer))(np.uint32(recipe.seed))
    with np.load(folder / WEIGHTS) as weights:
        given = decoder_params(dict(weights), layers=recipe.layers)
    state["params"]["trainable"] = jax.tree.map(_checked, state["params"]["trainable"], given)
    loader = recipe.source(folder, prefetch=0)
    Checkpoints(RunFolder(folder), in_background=False).save(0, state, loader.state())
    loader.close()


def _checked(ours: Any, given: np.ndarray) -> Any:
    import jax.numpy as jnp

    if ours.shape != given.shape:
        raise SystemExit(f"--weights does not fit the model: {given.shape} where {ours.shape} belongs")
    return jnp.asarray(given, ours.dtype)
