"""A `types.Task` made of two functions of the user's: what they return is checked while they are traced.

    init(key) -> parameters                                  any pytree of arrays
    loss(parameters, batch) -> total, weight[, metrics]      sums over the batch; metrics: name to such a pair

A loss may also take, by name, `keys` (a PRNG key for each example), `train` (False while evaluating) and `compute` (the
plan's `types.Compute`). It ignores the levers of a plan unless it reads `compute`.

A model with state, like the statistics of batch norm, has it in `init` under "state". Its loss takes `state` and
returns `total, weight, metrics, next state`. It is called for groups of examples, whose states are averaged: so the
next state is that of the whole effective batch, however a plan splits it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import Array

from plimsoll.errors import RecipeError
from plimsoll.recipes.own.user_code import taken
from plimsoll.types import COUNTED, STATE, Batch, Compute, LossSum, Metrics, Params

PARTS = {"trainable", "frozen", STATE}
"""What a dict of parameters may have, if not all of it is trained."""

OF_A_MEAN = (
    '. plimsoll.plan also takes the mean over equal examples, with reduction="mean"; where they do not count alike'
    " (padded tokens), return (sum, weight)"
)


class GivenTask:
    """A `Task` of the `init` and `loss` of a recipe: a `recipe.OwnRecipe`, which imports this file."""

    def __init__(self, recipe: Any, compute: Compute) -> None:
        self._recipe = recipe
        self.called: str = recipe.called
        takes = taken(recipe.loss, called=self.called)
        self.has_state = STATE in takes
        self._compute = {"compute": compute} if "compute" in takes else {}
        self._takes = takes - {"compute", STATE}

    def init(self, key: Array) -> Params:
        with self._recipe.guard("init"):
            given = self._recipe.init(key)
        is_split = isinstance(given, dict) and {"trainable"} < given.keys() <= PARTS
        params = given if is_split else {"trainable": given}
        self._require_arrays(params)
        if self.has_state != (STATE in params):
            raise RecipeError(
                f"a model with state returns it from init and takes it in its loss, and of {self.called}"
                f" {'init returns none' if self.has_state else 'the loss takes none'}: return"
                ' {"trainable": ..., "state": ...}, take `state`, and return (total, weight, metrics, next state)'
            )
        return params

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        given = {name: part for name, part in params.items() if name in ("trainable", "frozen")}
        given = given if "frozen" in given else given["trainable"]
        batch = dict(batch)
        counted = batch.pop(COUNTED, None)

        # Examples that are normalised together, or, where rows that fill up a batch are left out, one by one.
        examples = len(keys)
        together = examples
        if counted is not None:
            together = 1
        elif self.has_state and train and self._recipe.norm_group:
            together = min(self._recipe.norm_group, examples)

        def sums_of_group(group: tuple[Batch, Array]) -> Metrics:
            return self._sums(given, params.get(STATE), *group, train=train)

        if together == examples and counted is None:
            sums = sums_of_group((batch, keys))
        else:
            groups = jax.tree.map(lambda leaf: leaf.reshape(-1, together, *leaf.shape[1:]), (batch, keys))
            sums = jax.vmap(sums_of_group)(groups)
            if counted is not None:
                sums = jax.tree.map(lambda values: jnp.where(counted, values, 0.0), sums)
            sums = jax.tree.map(lambda values: jnp.sum(values, axis=0, dtype=values.dtype), sums)
        loss = sums.pop("loss")
        return loss, None, sums

    def _sums(self, given: Any, state: Any, batch: Batch, keys: Array, *, train: bool) -> Metrics:
        options = {name: value for name, value in {"keys": keys, "train": train}.items() if name in self._takes}
        if self.has_state:
            options[STATE] = state
        with self._recipe.guard("loss"):
            returned = self._recipe.loss(given, dict(batch), **options, **self._compute)
        if not isinstance(returned, tuple) or not 2 <= len(returned) <= (4 if self.has_state else 3):
            raise self._not_sums(f"it returned {described(returned)}")
        total, weight, metrics, after = (*returned, *({}, None)[len(returned) - 2 :])
        if not isinstance(metrics, dict) or not all(isinstance(p, tuple) and len(p) == 2 for p in metrics.values()):
            raise self._not_sums(f"its metrics are {described(metrics)}, not a dict of name to (total, weight)")
        reserved = {"loss", STATE} if self.has_state else {"loss"}
        if taken := reserved & metrics.keys():
            raise RecipeError(
                f"a metric of {self.called} is called {min(taken)!r}, which is the {min(taken)} itself: rename it"
            )
        pairs = {"loss": (total, weight), **metrics}
        for name, pair in pairs.items():
            for part, value in zip(("total", "weight"), pair, strict=True):
                number = isinstance(value, bool | int | float | np.generic | np.ndarray | jax.Array)
                if not number or jnp.shape(value) != ():
                    of = "" if name == "loss" else f" of {name!r}"
                    raise self._not_sums(f"its {part}{of} is {described(value)}")
        sums = {name: LossSum(*(jnp.asarray(value, jnp.float32) for value in pair)) for name, pair in pairs.items()}
        if self.has_state and train:
            sums[STATE] = LossSum(self._next_state(after, state), jnp.int32(1))
        return sums

    def _next_state(self, returned: Any, before: Any) -> Any:
        """Returns the state that the loss returned, to be summed; no gradient flows from it."""
        if returned is None:
            raise RecipeError(
                f"the loss of {self.called} takes `state` and returns none: in training it returns (total, weight,"
                " metrics, next state)"
            )
        shapes, expected = (
            jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree) for tree in (returned, before)
        )
        if shapes != expected:
            raise RecipeError(
                f"the loss of {self.called} returns the state {shapes}, and was given {expected}: it must be the same"
                " pytree of arrays of the same shapes and types"
            )

        def summand(leaf: Any) -> Array:
            wide = jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
            return jax.lax.stop_gradient(leaf).astype(wide)

        return jax.tree.map(summand, returned)

    def _not_sums(self, what: str) -> RecipeError:
        return RecipeError(
            f"the loss of {self.called} must return two scalars, the sum over the examples of the batch and what it is"
            f" to be divided by (their number, say); {what}. Take jnp.sum of it, not jnp.mean, and return"
            f" (total, weight){OF_A_MEAN}"
        )

    def _require_arrays(self, params: Params) -> None:
        trainable = tree_leaves_with_path(params["trainable"])
        others = [leaf for name in ("frozen", STATE) for leaf in tree_leaves_with_path(params.get(name, {}))]
        for path, leaf in trainable + others:
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
    a whole (batch norm, in-batch negatives), would be another loss with every split of the batch, unless it has state.

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

        # What normalises its batch is a sum over examples once it has its statistics.
        train = not task.has_state
        if task.has_state:
            whole = task.loss(params, None, batch, keys, train=train)[0]
        each = [task.loss(params, None, part, keys[at : at + 1], train=train)[0] for at, part in enumerate(parts)]
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
            f' batch, or give it to the loss as `state` (docs/your-own.md, "Batch norm"){OF_A_MEAN}'
        )
