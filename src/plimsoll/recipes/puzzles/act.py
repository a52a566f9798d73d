"""Training functions of the Tiny Recursive Model: each slot of the batch keeps its puzzle until the model halts.

An optimizer step is one supervision step of every slot. A slot that has halted takes the batch's example at its index
and starts from the initial latents. The others keep their latents and ignore their new examples. The slots' content is
the carry, a part of the training state. An evaluation takes `halt_max_steps` steps of every puzzle in one call.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from plimsoll.recipes.puzzles.metrics import loss_and_metrics
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.puzzles.trm import Network, truncated
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import COUNTED, IGNORED_LABEL, Batch, Compute, LossSum, Metrics, Params

PUZZLES = "puzzles"
"""Name of the table of puzzle embeddings."""
DATA = ("inputs", "labels", "puzzle_identifiers")
LEAST_DELAYED = 2
"""Smallest number of steps that exploration may require of a puzzle before it halts."""

Carry = dict[str, Array]


class Answers(NamedTuple):
    """Predictions for a batch: of the last supervision step, or of all steps, which are then the first axis."""

    tokens: Int[Array, "*steps batch length"]
    """Most likely tokens, int32."""
    halt_logits: Float[Array, "*steps batch"]
    """Logits of halting, positive where the predicted answer is more likely right than wrong."""

    @classmethod
    def likeliest(cls, logits: Float[Array, "batch length vocab"], halt_logits: Float[Array, " batch"]) -> Answers:
        return cls(jnp.argmax(logits, axis=-1).astype(jnp.int32), halt_logits)


class RecursiveSolver:
    """Model and loss for puzzles, with a carry (`types.Carries`) and a table of embeddings (`types.ReadsTables`).

    Batches: int32 arrays `inputs` and `labels` (batch, length), and `puzzle_identifiers` (batch,). A position without a
    label has IGNORED_LABEL.
    """

    def __init__(self, model: Trm, spec: PuzzleSpec, compute: Compute) -> None:
        self.model = model
        self.spec = spec
        self.network = Network(model, spec, compute)

    def init(self, key: Array) -> Params:
        """Returns initial parameters.

        The two initial latents are random and never trained; puzzle embeddings are zero.
        """
        weights, high, low = jax.random.split(key, 3)
        d = self.model.width
        return {
            "trainable": self.network.init(weights),
            "frozen": {"high": truncated(high, (d,), std=1.0), "low": truncated(low, (d,), std=1.0)},
            "tables": {PUZZLES: jnp.zeros((self.spec.identifiers, d))},
        }

    def start(self, examples: int) -> Carry:
        """Returns the initial carry of `examples` slots. All have halted, so that the first step fills them."""
        length = self.spec.length
        latent = jnp.zeros((examples, self.network.positions, self.model.width))
        return {
            "high": latent,
            "low": latent,
            "steps": jnp.zeros(examples, jnp.int32),
            "halted": jnp.ones(examples, bool),
            "inputs": jnp.zeros((examples, length), jnp.int32),
            "labels": jnp.full((examples, length), IGNORED_LABEL, jnp.int32),
            "puzzle_identifiers": jnp.zeros(examples, jnp.int32),
        }

    def rows(self, carry: Carry | None, batch: Batch) -> dict[str, Int[Array, " batch"]]:
        """Returns the row index of each slot's puzzle embedding in its next step, by table name."""
        identifiers = batch["puzzle_identifiers"]
        if carry is not None:
            identifiers = jnp.where(carry["halted"], identifiers, carry["puzzle_identifiers"])
        return {PUZZLES: identifiers}

    def loss(
        self, params: Params, carry: Carry | None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, Carry | None, Metrics]:
        """Returns the loss summed over slots, the next carry, and metrics.

        Accuracies and step counts are over the slots that halt in this step, with a weight of 0 if none does.
        `params["rows"]` may hold the puzzle embeddings; else they are read from the table. If `carry` is None, all
        slots take new examples.
        """
        if not train:
            loss, metrics, _ = self.evaluated(params, batch, carry)
            return loss, None, metrics
        state, x = self._filled(params, batch, carry)
        weights = params["trainable"]
        high, low = self.network.recursed(weights, state["high"], state["low"], x, learns=True)
        logits, q = self.network.answered(weights, high)
        steps = state["steps"] + 1
        halted = self._halts(q, steps, keys)
        after = state | {"high": high, "low": low, "steps": steps, "halted": halted}
        everybody = jnp.ones(len(steps), bool)
        loss, metrics = loss_and_metrics(logits, q, state["labels"], steps, halted=halted, counted=everybody)
        return loss, jax.lax.stop_gradient(after), metrics

    def evaluated(self, params: Params, batch: Batch, carry: Carry | None = None) -> tuple[LossSum, Metrics, Answers]:
        """Returns loss, metrics and answers of an evaluation, in which every puzzle takes all steps.

        Loss and metrics are sums without the batch's padding examples (`types.COUNTED`).
        """
        state, x = self._filled(params, batch, carry)
        weights = params["trainable"]

        def step(latents: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            return self.network.recursed(weights, *latents, x, learns=False), None

        (high, _), _ = jax.lax.scan(step, (state["high"], state["low"]), length=self.model.halt_max_steps)
        logits, q = self.network.answered(weights, high)
        counted = batch.get(COUNTED, jnp.ones(len(q), bool))
        steps = jnp.full(len(q), self.model.halt_max_steps, jnp.int32)
        loss, metrics = loss_and_metrics(logits, q, state["labels"], steps, halted=counted, counted=counted)
        return loss, metrics, Answers.likeliest(logits, q)

    def every_step(self, params: Params, batch: Batch) -> Answers:
        """Returns the answers after each step of an evaluation, with leading axes (steps, batch)."""
        state, x = self._filled(params, batch, None)
        weights = params["trainable"]

        def step(latents: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Answers]:
            latents = self.network.recursed(weights, *latents, x, learns=False)
            return latents, Answers.likeliest(*self.network.answered(weights, latents[0]))

        return jax.lax.scan(step, (state["high"], state["low"]), length=self.model.halt_max_steps)[1]

    def _filled(self, params: Params, batch: Batch, carry: Carry | None) -> tuple[Carry, Array]:
        """Returns the carry, with the batch's examples in the slots that have halted, and the embedded puzzles of all
        slots."""
        slots = self.start(len(batch["labels"])) if carry is None else carry
        if "rows" in params:
            rows = params["rows"][PUZZLES]
        else:
            rows = params["tables"][PUZZLES][self.rows(carry, batch)[PUZZLES]]
        halted = slots["halted"]

        def new(value: Array, old: Array) -> Array:
            return jnp.where(halted.reshape(-1, *[1] * (old.ndim - 1)), value.astype(old.dtype), old)

        data = {name: new(batch[name], slots[name]) for name in DATA}
        latents = {name: new(params["frozen"][name][None, None, :], slots[name]) for name in ("high", "low")}
        state = slots | data | latents | {"steps": new(jnp.zeros_like(slots["steps"]), slots["steps"])}
        return state, self.network.embedded(params["trainable"], state["inputs"], rows)

    def _halts(self, q: Float[Array, " batch"], steps: Int[Array, " batch"], keys: Array) -> Bool[Array, " batch"]:
        """Returns True for slots that halt after this step. Exploration may delay a halt, but not beyond the last
        step."""
        most = self.model.halt_max_steps
        wants = (q > 0) | (steps >= most)

        def delay(key: Array) -> Array:
            explores, length = jax.random.split(key)
            delayed = jax.random.randint(length, (), min(LEAST_DELAYED, most), most + 1, jnp.int32)
            return jnp.where(jax.random.bernoulli(explores, self.model.halt_exploration), delayed, 0)

        return wants & (steps >= jax.vmap(delay)(keys))
