"""The golden files of the published implementation, as our shapes, parameters, batches and carries; our steps of them.

Both sides sum in float32. How far either is from float64 tells whose rounding a difference is, so some numbers of our
steps in float64 are kept in tests/recipes/puzzles/golden (trm_float64.py makes them).
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.recipes.puzzles.act import RecursiveSolver
from plimsoll.types import Compute, Levers
from published_trm import TABLE, model_of, names, placed, spec_of

VARIANTS = ("attention", "mlp")
CHAINED = ("attention",)
"""Variants whose steps follow one another by our own carry. The MLP's norm over positions magnifies rounding: three of
its steps in float32 are 9e-5 from float64, the file's own too, so each begins with the file's carry."""
CARRIED = {"z_H": "high", "z_L": "low"}
KEPT = Path(__file__).parents[1] / "recipes/puzzles/golden"
SAMPLE = 512
"""Most numbers of an array that are kept in float64."""
STRIDE = 2_654_435_761
"""A prime: multiples of it, modulo any smaller size, are all different and lie everywhere."""


class Step(NamedTuple):
    """What one of our steps gave."""

    loss: object
    carry: dict
    metrics: dict
    rows: np.ndarray
    """Row of the table of puzzles that each slot read."""
    arrays: dict[str, np.ndarray]
    """Latents, logits and gradients by name: what rounding moves. Names of gradients begin with GRADIENT."""


GRADIENT = "gradient"


class Golden:
    def __init__(self, shared, variant):
        self.path = shared / "golden" / f"trm_{variant}.npz"
        with np.load(self.path, allow_pickle=False) as file:
            self.file = dict(file)
        config = json.loads(str(self.file["config"]))
        self.model = model_of(config)
        self.spec = spec_of(config)

    @property
    def steps(self):
        return len({name.split("/")[0] for name in self.file if name.startswith("step")})

    @property
    def examples(self):
        return len(self.batch(0)["labels"])

    @property
    def digest(self):
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def task(self, **levers):
        return RecursiveSolver(self.model, self.spec, Compute(levers=Levers(**levers)))

    def tensors(self):
        """As a published checkpoint names them."""
        buffers = {name: self.file[f"buffer/{name}"] for name in ("H_init", "L_init")}
        tensors = {f"inner.{name}": value for name, value in buffers.items()}
        return tensors | {TABLE: self.file["buffer/puzzle_emb"]} | self.under("param/")

    def under(self, prefix):
        return {name.removeprefix(prefix): value for name, value in self.file.items() if name.startswith(prefix)}

    def params(self):
        shapes = jax.eval_shape(self.task().init, jax.random.key(0))
        return jax.tree.map(jnp.asarray, placed(self.tensors(), shapes, self.model))

    def like_trainable(self, prefix):
        """What stands in the file under every parameter's name, in our parameters' structure."""
        tensors = self.tensors() | self.under(prefix)
        return placed(tensors, self.params(), self.model)["trainable"]

    def batch(self, step):
        return self.under(f"step{step}/batch/")

    def carry(self, step):
        return {CARRIED.get(name, name): value for name, value in self.under(f"step{step}/carry/").items()}

    def arrays(self, step):
        """What the published step gave, as `Step.arrays` has it."""
        told, carry = self.under(f"step{step}/"), self.carry(step)
        found = {"high": carry["high"], "low": carry["low"], "logits": told["logits"], "q": told["q_halt_logits"]}
        return found | gradients_by_name(self.like_trainable(f"step{step}/grad/"), told["grad_puzzle_rows"])


def gradients_by_name(trainable, rows):
    paths = jax.tree_util.tree_leaves_with_path(trainable)
    named = {GRADIENT + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in paths}
    return named | {f"{GRADIENT} of rows": np.asarray(rows)}


def walked(golden, dtype=np.float32):
    """Our steps, one after the other, the parameters as they were."""
    task, params = golden.task(), as_floats(golden.params(), dtype)
    keys = jax.vmap(jax.random.key)(jnp.arange(golden.examples, dtype=jnp.uint32))

    @jax.jit
    def step(carry, batch):
        ids = task.rows(carry, batch)
        rows = {name: table[ids[name]] for name, table in params["tables"].items()}

        def total(trainable, rows):
            given = params | {"trainable": trainable, "rows": rows}
            loss, after, metrics = task.loss(given, carry, batch, keys, train=True)
            return loss.total, (loss, after, metrics)

        (_, told), gradients = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params["trainable"], rows)
        return told, gradients, ids, task.network.answered(params["trainable"], told[1]["high"])

    carry, found = as_floats(task.start(golden.examples), dtype), []
    for number in range(golden.steps):
        (loss, carry, metrics), (trainable, rows), ids, (logits, q) = step(carry, golden.batch(number))
        arrays = {"high": carry["high"], "low": carry["low"], "logits": logits, "q": q}
        arrays |= gradients_by_name(trainable, rows["puzzles"])
        found.append(Step(loss, carry, metrics, np.asarray(ids["puzzles"]), jax.tree.map(np.asarray, arrays)))
        carry = carry if golden.model.variant in CHAINED else as_floats(golden.carry(number), dtype)
    return found


def as_floats(tree, dtype):
    def like(leaf):
        return jnp.asarray(leaf, dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype)

    return jax.tree.map(like, tree)


def sampled(array):
    """Some of an array's numbers, all of a small one."""
    flat = np.asarray(array).reshape(-1)
    return flat if len(flat) <= SAMPLE else flat[np.arange(SAMPLE) * STRIDE % len(flat)]


def in_float64(golden, folder):
    """Sampled arrays of our steps in float64, and their losses: the kept ones, or made now where the file is another.

    Args:
        golden: The published file.
        folder: Where they are made if they must be; that takes some 15 CPU seconds.
    """
    kept = KEPT / golden.path.name
    with np.load(kept, allow_pickle=False) as file:
        known = str(file["digest"]) == golden.digest
    if not known:
        kept = folder / golden.path.name
        program = Path(__file__).with_name("trm_float64.py")
        subprocess.run([sys.executable, program, golden.path.parents[1], folder, golden.model.variant], check=True)
    with np.load(kept, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != "digest"}
    return [
        {name.removeprefix(f"{step}/"): array for name, array in arrays.items() if name.startswith(f"{step}/")}
        for step in range(golden.steps)
    ]


def distance(actual, expected):
    """Norm of the difference over the norm; of whole trees, the largest of a leaf."""
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return max(_apart(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs)


def _apart(actual, expected):
    assert actual.shape == expected.shape
    apart, size = np.linalg.norm(actual - expected), np.linalg.norm(expected)
    return apart / size if size else apart


__all__ = ["GRADIENT", "VARIANTS", "Golden", "distance", "in_float64", "names", "sampled", "walked"]
