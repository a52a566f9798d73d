"""What the recurrence can remember: a symbol after so many tokens of noise, and values by their keys.

    python benchmarks/recall.py [--lags 64 512 4096] [--minutes 10] [--original] [--pairs 8 --minutes 3] [--out FILE]

Delayed recall: the first token is one of 16 symbols, then come `lag` tokens of noise from another 16, then a mark, at
which the symbol has to be said; 1 in 16 is chance. `--original` runs the same with the parametrisation of the published
model instead (systems of 3.1: |lambda| = 0.1 + 0.89 sigmoid(alpha) with alpha from -3 to 0, evenly spaced phases, a
real input that is not normalised, the real part read), everything else alike. With `--longer` each lag goes on with
the weights of the one before it: at first noise drowns a symbol that is 4,096 tokens old, and what tells the two apart
is the same for every lag. Key-value recall (`--pairs`): so many
pairs of a key and its value, then one of the keys again, whose value has to be said; for the fixed recurrence, the
selective one, and each with a last layer that attends.

Every cell is trained until 99 % of 1,024 new sequences are right, twice in a row, or its minutes are over. A table, and
bench-out/recall.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array
from text_vs_trainer import conditions

from plimsoll.levers.remat import keep
from plimsoll.models.decoder import Decoder
from plimsoll.recipes.longcontext.eigen import EigenBlock, Group, Mixer
from plimsoll.recipes.longcontext.eigen_shape import EigenShape, eigen_inner
from plimsoll.recipes.longcontext.recurrence import states
from plimsoll.types import Compute

ROOT = Path(__file__).resolve().parents[1]
SYMBOLS, NOISE = 16, 16
QUERY = SYMBOLS + NOISE
KEYS = 32
SHAPE = EigenShape(
    vocab=QUERY + 1, width=64, layers=2, heads=2, inner=eigen_inner(64), states=64, r_min=0.99, r_max=0.9999
)
SOLVED = 0.99
EXAMINED = 1024

Sequences = Callable[[Array, int], tuple[Array, Array]]
"""A key and a count to ids (count, length) and what is to be said after the last of them."""


class OriginalMixer(Mixer):
    """The published layer's recurrence in the place of ours."""

    def __init__(self, shape: EigenShape, compute: Compute, rngs: nnx.Rngs) -> None:
        super().__init__(shape, compute, rngs)
        del self.eigenvalues
        self.alpha = nnx.Param(jax.random.uniform(rngs.params(), (shape.states,), minval=-3.0, maxval=0.0))
        self.omega = nnx.Param(2 * math.pi * jnp.arange(shape.states) / shape.states)

    def __call__(self, x: Array, before: Array | None = None) -> tuple[Array, Array]:
        size = 0.1 + 0.89 * jax.nn.sigmoid(self.alpha[...])
        coefficient = size * jnp.exp(1j * self.omega[...])
        real, _ = jnp.split(keep(self.enter(x)), 2, axis=-1)
        found = states(coefficient, real.astype(jnp.complex64), before, form=self.form, chunk=self.chunk)
        read = self.leave(jnp.concatenate([found.real, jnp.zeros_like(found.real)], axis=-1))
        read += self.skip["scale"][...] * x
        return jax.nn.sigmoid(keep(self.gate(x))) * read, found[:, -1]


class OriginalBlock(EigenBlock):
    def __init__(self, shape: EigenShape, compute: Compute, rngs: nnx.Rngs) -> None:
        super().__init__(shape, compute, rngs)
        self.mixer = OriginalMixer(shape, compute, rngs)


def delayed(lag: int) -> Sequences:
    def draw(key: Array, count: int) -> tuple[Array, Array]:
        first, then = jax.random.split(key)
        symbols = jax.random.randint(first, (count, 1), 0, SYMBOLS)
        noise = jax.random.randint(then, (count, lag - 1), SYMBOLS, SYMBOLS + NOISE)
        return jnp.concatenate([symbols, noise, jnp.full((count, 1), QUERY)], axis=1), symbols[:, 0]

    return draw


def pairs_of(pairs: int) -> Sequences:
    """Keys do not repeat; ids of values follow those of keys."""

    def draw(key: Array, count: int) -> tuple[Array, Array]:
        a, b, c = jax.random.split(key, 3)
        keys = jax.vmap(lambda k: jax.random.permutation(k, KEYS)[:pairs])(jax.random.split(a, count))
        values = KEYS + jax.random.randint(b, (count, pairs), 0, KEYS)
        asked = jax.random.randint(c, (count, 1), 0, pairs)
        ids = jnp.stack([keys, values], axis=2).reshape(count, 2 * pairs)
        query, answer = (jnp.take_along_axis(x, asked, axis=1) for x in (keys, values))
        return jnp.concatenate([ids, query], axis=1), answer[:, 0]

    return draw


def learned(
    shape: EigenShape, draw: Sequences, options: Any, *, batch: int, original: bool = False, params: Any = None
) -> tuple[dict[str, Any], Any]:
    """Trains until it is solved or the minutes are over; from `params`, or from new ones. Also what it ended with."""
    decoder = Decoder(shape, Compute(), OriginalBlock if original else Group if shape.attention_every else EigenBlock)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(options.learning_rate))

    def logits(params: dict, ids: Array) -> Array:
        return decoder.logits(params, decoder.hidden(params, ids)[:, -1])

    def loss(params: dict, ids: Array, answers: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, ids), answers).mean()

    @jax.jit
    def learn(state: Any, key: Array) -> tuple[Any, Array]:
        def one(state: Any, key: Array) -> tuple[Any, Array]:
            params, kept = state
            value, gradient = jax.value_and_grad(loss)(params, *draw(key, batch))
            change, kept = rule.update(gradient, kept, params)
            return (optax.apply_updates(params, change), kept), value

        return jax.lax.scan(one, state, jax.random.split(key, options.every))

    @jax.jit
    def examine(params: dict, key: Array) -> Array:
        def one(key: Array) -> Array:
            ids, answers = draw(key, batch)
            return jnp.mean(jnp.argmax(logits(params, ids), axis=-1) == answers)

        return jnp.mean(jax.lax.map(one, jax.random.split(key, max(1, EXAMINED // batch))))

    params = jax.jit(decoder.init)(jax.random.key(options.seed)) if params is None else params
    state, key = (params, rule.init(params)), jax.random.key(1)
    steps, right = learn.lower(state, key).compile(), examine.lower(params, key).compile()  # before the clock starts
    began, solved_before, done, told = time.monotonic(), 0, 0, 0.0
    while solved_before < 2 and time.monotonic() - began < 60 * options.minutes and done < options.steps:
        key, of_steps, of_examples = jax.random.split(key, 3)
        state, losses = steps(state, of_steps)
        accuracy, done = float(right(state[0], of_examples)), done + options.every
        solved_before = solved_before + 1 if accuracy > SOLVED else 0
        if options.verbose:
            print(f"    {done:6} {float(losses.mean()):.3f} {accuracy:.3f}", file=sys.stderr, flush=True)
        told = accuracy
    seconds = time.monotonic() - began
    return {"accuracy": told, "solved": solved_before == 2, "steps": done, "seconds": seconds}, state[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="*", default=[64, 512, 4096])
    parser.add_argument("--original", action="store_true", help="the published parametrisation, beside ours")
    parser.add_argument("--only-original", action="store_true")
    parser.add_argument("--longer", action="store_true", help="each lag goes on with what the one before it learned")
    parser.add_argument("--pairs", type=int, default=8, help="of key-value recall; 0 for none")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each cell, at most")
    parser.add_argument("--steps", type=int, default=10**9, help="of each cell, at most")
    parser.add_argument("--every", type=int, default=50, help="steps between examinations")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--r-min", type=float, default=SHAPE.r_min)
    parser.add_argument("--r-max", type=float, default=SHAPE.r_max)
    parser.add_argument("--max-phase", type=float, default=math.pi / 10)
    parser.add_argument("--tokens", type=int, default=32_768, help="of a step of delayed recall, in 8 to 64 sequences")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out/recall.json")
    options = parser.parse_args()
    shape = replace(SHAPE, r_min=options.r_min, r_max=options.r_max, max_phase=options.max_phase)
    rows = []

    def tell(task: str, model: str, **row: Any) -> None:
        rows.append({"task": task, "model": model, **row})
        words = "solved" if row["solved"] else "not solved"
        print(
            f"{task:20} {model:28} {100 * row['accuracy']:6.1f} %  {words:10} {row['steps']:6} steps"
            f" {row['seconds'] / 60:6.1f} min",
            flush=True,
        )

    ended: dict[bool, Any] = {}
    for lag in options.lags:
        batch = max(8, min(64, options.tokens // lag))
        sides = ([] if options.only_original else [False]) + (
            [True] if options.original or options.only_original else []
        )
        for original in sides:
            known = ended.get(original) if options.longer else None
            found, ended[original] = learned(shape, delayed(lag), options, batch=batch, original=original, params=known)
            tell(f"lag {lag:,}", "original" if original else "ours", **found)
    if options.pairs:
        wide = replace(shape, vocab=2 * KEYS, r_min=0.5, r_max=0.999, max_phase=2 * math.pi)
        for selective in (False, True):
            for every in (0, 2):
                of = replace(wide, selective=selective, attention_every=every)
                name = ("selective" if selective else "fixed") + (" and attention" if every else "")
                found, _ = learned(of, pairs_of(options.pairs), options, batch=64)
                tell(f"{options.pairs} pairs", name, **found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"conditions": conditions(options), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
