"""plimsoll's Tiny Recursive Model, forward and backward, for benchmarks/trm.py, which starts this.

As a plan has it: `python benchmarks/sides.py ours_trm bfloat16 block 1` is dots in bfloat16, the last round computed
again in the backward pass, and all examples at once.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from peers.trm_side import Arrays, File, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from plimsoll.levers.sharding import in_micro_batches, joined
from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.training import memory
from plimsoll.training.program import compiled
from plimsoll.training.step import _gradient
from plimsoll.types import Compute, Levers, Precision, Remat
from published_trm import TABLE, model_of, placed, spec_of


class Plimsoll:
    """A `trm_side.Side`."""

    def __init__(self, precision: Precision, remat: Remat, accumulation: int) -> None:
        self.compute, self.accumulation = Compute(levers=Levers(precision=precision, remat=remat)), accumulation

    def start(self, file: File) -> None:
        examples, config = len(file.arrays["step0/batch/inputs"]), file.config
        model = model_of(config)
        task = RecursiveSolver(model, spec_of(config), self.compute)
        buffers = {f"inner.{name}": value for name, value in file.under("buffer/").items()}
        tensors = file.under("param/") | {TABLE if "puzzle_emb" in name else name: v for name, v in buffers.items()}
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        self.params = jax.tree.map(jnp.asarray, placed(tensors, shapes, model))
        self.held = jax.jit(task.start, static_argnums=0)(examples)  # no two leaves in the same bytes: it is donated
        self.keys = jax.vmap(jax.random.key)(jnp.arange(examples, dtype=jnp.uint32))
        batch = file.under("step0/batch/")
        self.run = jax.jit(forward_and_backward(task, accumulation=self.accumulation), donate_argnums=1)
        self.run = compiled(self.run.lower(self.params, self.held, batch, self.keys))
        memory.trim()  # as a training process does once its steps are loaded

    def step(self, batch: Arrays) -> float:
        loss, self.held, _ = jax.block_until_ready(self.run(self.params, self.held, batch, self.keys))
        return float(loss.total * loss.weight)


def forward_and_backward(task: RecursiveSolver, *, accumulation: int) -> Any:
    """Returns a function of a training step without the update: carry to loss, next carry and gradients."""

    def run(params: Any, carry: Any, batch: Any, keys: Any) -> Any:
        rows = {name: params["tables"][name][ids] for name, ids in task.rows(carry, batch).items()}
        inputs = {"batch": batch, "keys": keys, "rows": rows}
        split = jax.tree.map(lambda x: in_micro_batches(x, accumulation), {"inputs": inputs, "carry": carry})
        (gradient, loss, _), (of_rows, after) = _gradient(task, {"params": params}, split)
        return loss, jax.tree.map(joined, after), (gradient, jax.tree.map(joined, of_rows))

    return run


def side() -> None:
    serve(Plimsoll(sys.argv[1], sys.argv[2], int(sys.argv[3])))  # type: ignore[arg-type]
