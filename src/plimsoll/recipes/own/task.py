"""A `types.Task` made of two functions of the user's: what they return is checked while they are traced.

    init(key) -> parameters                                  any pytree of arrays
    loss(parameters, batch) -> total, weight[, metrics]      sums over the batch; metrics: name to such a pair

A loss may also take, by name, `keys` (a PRNG key for each example), `train` (False while evaluating) and `compute` (the
plan's `types.Compute`). It ignores the levers of a plan unless it reads `compute`.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import Array

from plimsoll.errors import RecipeError
from plimsoll.types import COUNTED, Batch, Compute, LossSum, Metrics, Params

MAY_TAKE = ("keys", "train", "compute")
"""Arguments that a loss may take besides parameters and batch."""

OF_A_MEAN = (
    '. plimsoll.plan also takes the mean over equal examples, with reduction="mean"; where they do not count alike'
    " (padded tokens), return (sum, weight)"
)


class GivenTask:
    """A `Task` of the `init` and `loss` of a recipe: a `recipe.OwnRecipe`, which imports this file."""

    def __init__(self, recipe: Any, compute: Compute) -> None:
        self._recipe = recipe
        self.called: str = recipe.called
        parameters = inspect.signature(recipe.loss).parameters
        named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        takes = {p.name for p in named[2:] if p.default is p.empty or p.name in MAY_TAKE}
        if len(named) < 2 or not takes <= {*MAY_TAKE}:
            raise RecipeError(
                f"the loss of {self.called} is loss({', '.join(parameters)}): it takes the parameters and the batch,"
                f" and may take {', '.join(MAY_TAKE)} by these names"
            )
        self._compute = {"compute": compute} if "compute" in takes else {}
        self._takes = takes - {"compute"}

    def init(self, key: Array) -> Params:
        with self._recipe.guard("init"):
            given = self._recipe.init(key)
        is_split = isinstance(given, dict) and given.keys() == {"trainable", "frozen"}
        params = given if is_split else {"trainable": given}
        self._require_arrays(params)
        return params

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        given = params if "frozen" in params else params["trainable"]
        batch = dict(batch)
        counted = batch.pop(COUNTED, None)
        if counted is None:
            sums = self._sums(given, batch, keys, train=train)
        else:  # the same sums example by example, so that rows that fill up a batch can be left out

            def sums_of_row(row: Batch, key: Array) -> Metrics:
                return self._sums(given, jax.tree.map(lambda leaf: leaf[None], row), key[None], train=train)

            sums = jax.vmap(sums_of_row)(batch, keys)
            sums = jax.tree.map(lambda values: jnp.sum(jnp.where(counted, values, 0.0)), sums)
        loss = sums.pop("loss")
        return loss, None, sums

    def _sums(self, given: Any, batch: Batch, keys: Array, *, train: bool) -> Metrics:
        options = {name: value for name, value in {"keys": keys, "train": train}.items() if name in self._takes}
        with self._recipe.guard("loss"):
            returned = self._recipe.loss(given, dict(batch), **options, **self._compute)
        if not isinstance(returned, tuple) or len(returned) not in (2, 3):
            raise self._not_sums(f"it returned {described(returned)}")
        metrics = returned[2] if len(returned) == 3 else {}
        if not isinstance(metrics, dict) or not all(isinstance(p, tuple) and len(p) == 2 for p in metrics.values()):
            raise self._not_sums(f"its metrics are {described(metrics)}, not a dict of name to (total, weight)")
        if "loss" in metrics:
            raise RecipeError(f"a metric of {self.called} is called 'loss', which is the loss itself: rename it")
        pairs = {"loss": returned[:2], **metrics}
        for name, pair in pairs.items():
            for part, value in zip(("total", "weight"), pair, strict=True):
                number = isinstance(value, bool | int | float | np.generic | np.ndarray | jax.Array)
                if not number or jnp.shape(value) != ():
                    of = "" if name == "loss" else f" of {name!r}"
                    raise self._not_sums(f"its {part}{of} is {described(value)}")
        return {name: LossSum(*(jnp.asarray(value, jnp.float32) for value in pair)) for name, pair in pairs.items()}

    def _not_sums(self, what: str) -> RecipeError:
        return RecipeError(
            f"the loss of {self.called} must return two scalars, the sum over the examples of the batch and what it is"
            f" to be divided by (their number, say); {what}. Take jnp.sum of it, not jnp.mean, and return"
            f" (total, weight){OF_A_MEAN}"
        )

    def _require_arrays(self, params: Params) -> None:
        trainable = tree_leaves_with_path(params["trainable"])
        for path, leaf in trainable + tree_leaves_with_path(params.get("frozen", {})):
            place = keystr(path) or "its top"
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
                raise RecipeError(
                    f"init of {self.called} returns {described(leaf)} at {place}: only arrays are trained and"
                    " saved. Make a number one with jnp.float32(...); leave out of the tree what is no array (Equinox:"
                    " eqx.filter(model, eqx.is_inexact_array), and eqx.combine in the loss)"
                )
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise RecipeError(
                    f"init of {self.called} returns a PRNG key at {place}: take the keys that a loss gets"
                    " (`keys`, one for each example), so that randomness does not depend on the plan"
                )
        for path, leaf in trainable:
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise RecipeError(
                    f"init of {self.called} returns {leaf.dtype} at {keystr(path) or 'its top'}, which has no gradient:"
                    ' put what is not learned into "frozen", by returning {"trainable": ..., "frozen": ...}; the loss'
                    " gets both"
                )
        if not trainable:
            raise RecipeError(f"init of {self.called} returns no array: there is nothing to learn")


def described(value: Any) -> str:
    """Returns what a function of the user's returned, for a refusal."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"


TOLERANCE = 1e-3
"""Relative, between the loss of two examples and the sum of their losses: float32 sums in another order."""


def require_sound(task: GivenTask, batch: Batch, *, seed: int = 0, params: Params | None = None) -> None:
    """Requires on two examples that loss and gradient are finite, and that the loss is a sum over examples.

    Allocates one set of parameters and runs the model three times. A loss that is a mean, or that looks at the batch as
    a whole (batch norm, in-batch negatives), would be another loss with every split of the batch.

    Args:
        task: The loss, and how parameters begin.
        batch: Two examples.
        seed: Seed of the parameters.
        params: Parameters to look with; those of `seed` if left out.
    """
    parts = [jax.tree.map(lambda leaf, at=at: leaf[at : at + 1], dict(batch)) for at in range(2)]

    @jax.jit
    def measured(seed: Array, given: Params | None) -> tuple[LossSum, list[LossSum], Array]:
        params: Params = task.init(jax.random.key(seed)) if given is None else given
        keys = jax.vmap(jax.random.key)(jnp.arange(2, dtype=jnp.uint32))

        def total(trainable: Any) -> tuple[Array, LossSum]:
            loss = task.loss(params | {"trainable": trainable}, None, batch, keys, train=True)[0]
            return loss.total, loss

        gradient, whole = jax.grad(total, has_aux=True)(params["trainable"])
        each = [task.loss(params, None, part, keys[at : at + 1], train=True)[0] for at, part in enumerate(parts)]
        squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(gradient)]
        return whole, each, jnp.sqrt(jnp.sum(jnp.stack(squares)))

    whole, each, norm = jax.tree.map(float, measured(np.uint32(seed % 2**32), params))
    if not np.isfinite([*whole, norm]).all() or whole.weight <= 0:
        raise RecipeError(
            f"the loss of {task.called} on its first two examples is {whole.total:g} with the weight {whole.weight:g},"
            f" and its gradient's norm {norm:g}: all must be finite before the first step, and the weight above 0. Look"
            " at init, the scale of the data, and at logarithms, divisions and roots of 0"
        )
    sums = LossSum(each[0].total + each[1].total, each[0].weight + each[1].weight)
    scale = LossSum(abs(each[0].total) + abs(each[1].total), whole.weight)
    if any(abs(a - b) > TOLERANCE * s for a, b, s in zip(whole, sums, scale, strict=True)):
        raise RecipeError(
            f"the loss of {task.called} is no sum over examples: the first two together give the total"
            f" {whole.total:.6g} with the weight {whole.weight:g}, and one by one they add up to {sums.total:.6g} with"
            f" the weight {sums.weight:g}. A plan that splits the batch would learn something else. Take jnp.sum"
            " instead of jnp.mean, return the number of examples as the weight, and leave out what looks at the whole"
            f" batch{OF_A_MEAN}"
        )
