"""The golden files of the published implementation, as our shapes, parameters, batches and carries."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.recipes.puzzles.act import Halting, RecursiveSolver
from plimsoll.recipes.puzzles.published import TABLE, names, placed, shape_of
from plimsoll.types import Compute

VARIANTS = ("attention", "mlp")
STEPS = 3
CARRIED = {"z_H": "high", "z_L": "low"}


class Golden:
    def __init__(self, shared, variant):
        path = shared / "golden" / f"trm_{variant}.npz"
        with np.load(path, allow_pickle=False) as file:
            self.file = dict(file)
        config = json.loads(str(self.file["config"]))
        self.shape = shape_of(config)
        self.halting = Halting(max_steps=config["halt_max_steps"], exploration=config["halt_exploration_prob"])

    def task(self, **levers):
        return RecursiveSolver(self.shape, Compute(**levers), self.halting)

    def tensors(self):
        """As a published checkpoint names them."""
        buffers = {name: self.file[f"buffer/{name}"] for name in ("H_init", "L_init")}
        tensors = {f"inner.{name}": value for name, value in buffers.items()}
        return tensors | {TABLE: self.file["buffer/puzzle_emb"]} | self.under("param/")

    def under(self, prefix):
        return {name.removeprefix(prefix): value for name, value in self.file.items() if name.startswith(prefix)}

    def params(self):
        shapes = jax.eval_shape(self.task().init, jax.random.key(0))
        return jax.tree.map(jnp.asarray, placed(self.tensors(), shapes, self.shape, source="golden"))

    def like_trainable(self, prefix):
        """What stands in the file under every parameter's name, in our parameters' structure."""
        tensors = self.tensors() | self.under(prefix)
        return placed(tensors, self.params(), self.shape, source="golden")["trainable"]

    def batch(self, step):
        return self.under(f"step{step}/batch/")

    def carry(self, step):
        return {CARRIED.get(name, name): value for name, value in self.under(f"step{step}/carry/").items()}


def distance(actual, expected):
    """Norm of the difference over the norm; of whole trees, the largest of a leaf."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(_apart(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs)


def _apart(actual, expected):
    assert actual.shape == expected.shape
    apart, size = np.linalg.norm(actual - expected), np.linalg.norm(expected)
    return apart / size if size else apart


__all__ = ["STEPS", "VARIANTS", "Golden", "distance", "names"]
