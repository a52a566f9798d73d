"""optax's AdamW and plimsoll's narrow forms of it, for benchmarks/optimizers.py, which starts this."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from peers.turns import BETA1, BETA2, EPSILON, LEARNING_RATE, WEIGHT_DECAY, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from plimsoll.levers import weight_bits
from plimsoll.optimizers.adamw import AdamW
from plimsoll.types import Storage

SIDES = {
    "optax": Storage(),
    "plimsoll-8": Storage(optimizer_bits=8),
    "plimsoll-8-w24": Storage(optimizer_bits=8, weight_bits=24),
    "plimsoll-8-w16": Storage(optimizer_bits=8, weight_bits=16),
}


class Plimsoll:
    """A `turns.Side`: the compiled update, weights and state donated."""

    def __init__(self, storage: Storage) -> None:
        settings = AdamW(
            learning_rate=LEARNING_RATE, warmup_steps=0, final_fraction=1.0, weight_decay=WEIGHT_DECAY,
            beta1=BETA1, beta2=BETA2, epsilon=EPSILON, clip_norm=None,
        )  # fmt: skip
        self.optimizer = settings.rule(1000, storage)

    def start(self, weights: Sequence[np.ndarray]) -> None:
        params = [jnp.array(one) for one in weights]
        init = jax.jit(lambda params: (self.optimizer.store(params), self.optimizer.init(params)), donate_argnums=0)
        shapes = jax.eval_shape(init, params)
        step = jax.jit(lambda given, stored, state: self.optimizer.apply(given, state, stored), donate_argnums=(1, 2))
        self.step = step.lower(params, *shapes).compile()
        self.kept = init(params)

    def give(self, gradients: Sequence[np.ndarray]) -> None:
        self.given = [jnp.array(one) for one in gradients]

    def update(self) -> None:
        self.kept = jax.block_until_ready(self.step(self.given, *self.kept))

    def weights(self) -> list[np.ndarray]:
        stored, state = self.kept
        if stored[0].dtype == jnp.float32:
            return [np.asarray(one) for one in stored]
        rest = [one.rest for one in state.leaves]
        return [
            np.asarray(weight_bits.widen(one) if more is None else weight_bits.join(one, more))
            for one, more in zip(stored, rest, strict=True)
        ]

    def state_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.kept[1]))

    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.kept[0])

    def transient_bytes(self) -> int:
        stats = self.step.memory_analysis()
        return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


def side() -> None:
    serve(Plimsoll(SIDES[sys.argv[1]]))
