"""A `types.Task` of a user's two functions, whose results are checked while they are traced.

    init(key) -> parameters                                  any pytree of arrays
    loss(parameters, batch) -> total, weight[, metrics]      sums over the batch; metrics: name to such a pair

A loss may also take, by name, `keys` (a PRNG key for each example), `train` (False while evaluating) and `compute` (the
plan's `types.Compute`). It ignores the levers of a plan unless it reads `compute`.

If a model has state, like the statistics of batch norm, `init` returns it under "state". Its loss takes `state` and
returns `total, weight, metrics, next state`. The loss is called for groups of examples, whose next states are averaged:
so the next state is the same however a plan splits the effective batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import keystr, tree_leaves_with_path
from jaxtyping import Array

from plimsoll.data.examples import narrow
from plimsoll.errors import RecipeError
from plimsoll.planned import plain_compute
from plimsoll.recipes.own.user_code import taken
from plimsoll.types import COUNTED, STATE, Batch, Compute, LossSum, Metrics, Params

PARTS = {"trainable", "frozen", STATE}
"""Keys of the dict that `init` returns if not all of its arrays are trained."""

ARRAYS = (jax.Array, np.ndarray, np.generic)
NUMBERS = (*ARRAYS, bool, int, float)
NO_ARRAY = (
    "keep objects that are no arrays out of the tree (Equinox: eqx.filter(model, eqx.is_inexact_array), and"
    " eqx.combine in the loss)"
)
OF_A_MEAN = (
    '. plimsoll.plan also takes the mean over equal examples, with reduction="mean"; if they do not count alike'
    " (padded tokens), return (sum, weight)"
)


class GivenTask:
    """`types.Task` that calls `init` and `loss` of a `recipe.OwnRecipe`."""

    def __init__(self, recipe: Any, compute: Compute) -> None:
        self._recipe = recipe
        self._compute = compute
        self.called: str = recipe.called
        self._takes = taken(recipe.loss, called=self.called)
        self.has_state = STATE in self._takes

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
        given = {name: part for name, part in params.items() if name != STATE}
        if "frozen" not in given:
            given = given["trainable"]
        examples = dict(batch)
        counted = examples.pop(COUNTED, None)

        def sums_of(examples: Batch, keys: Array) -> Metrics:
            return self._sums(given, params.get(STATE), examples, keys, train=train)

        # Calls the loss on single examples if some only fill the batch up, else on `norm_group` examples at a time.
        together = len(keys)
        if counted is not None:
            together = 1
        elif self.has_state and train and self._recipe.norm_group:
            together = min(self._recipe.norm_group, together)

        if counted is None and together == len(keys):
            sums = sums_of(examples, keys)
        else:
            groups = jax.tree.map(lambda leaf: leaf.reshape(-1, together, *leaf.shape[1:]), (examples, keys))
            sums = jax.vmap(sums_of)(*groups)
            if counted is not None:
                sums = jax.tree.map(lambda values: jnp.where(counted, values, 0.0), sums)
            sums = jax.tree.map(lambda values: jnp.sum(values, axis=0, dtype=values.dtype), sums)
        loss = sums.pop("loss")
        return loss, None, sums

    def _sums(self, given: Any, state: Any, examples: Batch, keys: Array, *, train: bool) -> Metrics:
        may_take = {"keys": keys, "train": train, "compute": self._compute, STATE: state}
        with self._recipe.guard("loss"):
            batch = self._recipe.batch_form.whole(examples) if self._recipe.batch_form else dict(examples)
            returned = self._recipe.loss(given, batch, **{name: may_take[name] for name in self._takes})
        if self._recipe.loss_reduction == "mean":
            returned = _sums_of_means(returned, len(keys))

        # Splits the result into its parts, which must be sums.
        metrics: Any = {}
        after = None
        match returned:
            case (total, weight):
                pass
            case (total, weight, metrics):
                pass
            case (total, weight, metrics, after) if self.has_state:
                pass
            case _:
                raise self._not_sums(f"it returned {described(returned)}")
        if not isinstance(metrics, dict):
            raise self._not_sums(f"its metrics are {described(metrics)}, not a dict of name to (total, weight)")
        if reserved := {"loss", STATE} & metrics.keys():
            raise RecipeError(
                f"a metric of {self.called} is called {min(reserved)!r}, which is the {min(reserved)} itself: rename it"
            )
        sums = {name: self._sum(name, pair) for name, pair in {"loss": (total, weight), **metrics}.items()}
        if self.has_state and train:
            sums[STATE] = LossSum(self._next_state(after, state), jnp.int32(1))
        return sums

    def _sum(self, name: str, pair: Any) -> LossSum:
        """Returns a total and a weight as float32."""
        is_pair = isinstance(pair, tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(part, NUMBERS) and jnp.shape(part) == () for part in pair):
            raise self._not_sums(f"its {name} is {described(pair)}")
        return LossSum(*(jnp.asarray(part, jnp.float32) for part in pair))

    def _next_state(self, returned: Any, before: Any) -> Any:
        """Returns the loss's next state without gradients, floats as float32, to be summed over groups."""
        shapes = in_words(returned)
        expected = in_words(before)
        if shapes != expected:
            raise RecipeError(
                f"the loss of {self.called} returns the state {shapes}, and was given {expected}: in training it"
                " returns (total, weight, metrics, next state), the last the same pytree of arrays of the same shapes"
                " and types"
            )

        def summand(leaf: Any) -> Array:
            wide = jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.dtype
            return jax.lax.stop_gradient(leaf).astype(wide)

        return jax.tree.map(summand, returned)

    def _not_sums(self, what: str) -> RecipeError:
        return RecipeError(
            f"the loss of {self.called} must return two scalars, the sum over the examples of the batch and its"
            f" divisor (their number, say); {what}. Take jnp.sum of it, not jnp.mean, and return"
            f" (total, weight){OF_A_MEAN}"
        )

    def _require_arrays(self, params: Params) -> None:
        for name, tree in params.items():
            for path, leaf in tree_leaves_with_path(tree):
                place = keystr(path) or "its top"
                if not isinstance(leaf, ARRAYS) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                    raise RecipeError(
                        f"init of {self.called} returns {described(leaf)} at {place}: only arrays are trained and"
                        " saved. Turn a number into an array by jnp.float32(...); take random keys from the `keys` of"
                        f" the loss, one for each example, so that no plan changes what is drawn; {NO_ARRAY}"
                    )
                if name == "trainable" and not jnp.issubdtype(leaf.dtype, jnp.floating):
                    raise RecipeError(
                        f"init of {self.called} returns {leaf.dtype} at {place}, which has no gradient: put what is not"
                        ' learned into "frozen", by returning {"trainable": ..., "frozen": ...}; the loss gets both'
                    )
        if not jax.tree.leaves(params["trainable"]):
            raise RecipeError(f"init of {self.called} returns no array: there is nothing to learn")


def _sums_of_means(returned: Any, examples: int) -> Any:
    """Returns the result of a loss with reduction="mean" as sums."""
    state = ()
    match returned:
        case (mean, metrics):
            pass
        case (mean, metrics, after):
            state = (after,)
        case mean:
            metrics = {}
    if not isinstance(metrics, dict) or getattr(mean, "shape", None) != ():
        raise RecipeError(
            'with reduction="mean" a loss returns a scalar, or a scalar and a dict of metrics that are means too;'
            f" this one returned {described(returned)}"
        )
    means = {name: (examples * value, examples) for name, value in metrics.items()}
    return examples * mean, examples, means, *state


def described(value: Any) -> str:
    """Returns a description of a value from a user's function, for error messages."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))})"
    return f"a {type(value).__name__}"


def in_words(tree: Any) -> str:
    """Returns the types and shapes of a pytree of arrays, with 32-bit types in place of 64-bit ones."""
    return str(jax.tree.map(lambda leaf: f"{narrow(leaf.dtype)}{list(leaf.shape)}", tree))


TOLERANCE = 1e-3
"""Largest relative difference of the loss of two examples from the sum of their losses: float32 sums are inexact."""


def require_sound(recipe: Any, batch: Batch, *, params: Params | None = None) -> None:
    """Checks on two examples that loss and gradient are finite, and that the loss is a sum over examples.

    Allocates one set of parameters and runs the model twice. A loss that is a mean, or that looks at the batch as
    a whole (batch norm, in-batch negatives), would change with every split of the batch, unless it has state.

    Args:
        recipe: A `recipe.OwnRecipe`.
        batch: Two examples.
        params: Parameters for the check; new ones if None.
    """
    task = GivenTask(recipe, plain_compute())
    keys = jax.random.split(jax.random.key(0), 2)
    train = not task.has_state  # with fixed statistics the loss of a batch norm is a sum over examples

    @jax.jit
    def measured(params: Params) -> tuple[LossSum, LossSum, Array]:
        def total(trainable: Any) -> tuple[Array, LossSum]:
            loss = task.loss(params | {"trainable": trainable}, None, batch, keys, train=train)[0]
            return loss.total, loss

        def alone(example: Batch, key: Array) -> LossSum:
            one = jax.tree.map(lambda leaf: leaf[None], example)
            return task.loss(params, None, one, key[None], train=train)[0]

        gradient, together = jax.grad(total, has_aux=True)(params["trainable"])
        norm = optax.tree.norm(optax.tree.cast(gradient, jnp.float32))
        return together, jax.vmap(alone)(dict(batch), keys), norm

    params = jax.jit(task.init)(jax.random.key(0)) if params is None else params
    together, alone, norm = jax.tree.map(np.asarray, measured(params))
    if not np.isfinite([*together, norm]).all() or together.weight <= 0:
        raise RecipeError(
            f"the loss of {task.called} on its first two examples is {together.total:g} with the weight"
            f" {together.weight:g}, and its gradient's norm {norm:g}: all must be finite before the first step, and the"
            " weight above 0. Look at init, the scale of the data, and at logarithms, divisions and roots of 0"
        )
    sums = LossSum(alone.total.sum(), alone.weight.sum())
    total_is_same = abs(together.total - sums.total) <= TOLERANCE * abs(alone.total).sum()
    weight_is_same = abs(together.weight - sums.weight) <= TOLERANCE * together.weight
    if not total_is_same or not weight_is_same:
        raise RecipeError(
            f"the loss of {task.called} is no sum over examples: the first two together give the total"
            f" {together.total:.6g} with the weight {together.weight:g}, and one by one they add up to"
            f" {sums.total:.6g} with the weight {sums.weight:g}. A plan that splits the batch would learn something"
            " else. Take jnp.sum instead of jnp.mean, return the number of examples as the weight, and leave out"
            ' statistics of the whole batch, or give them to the loss as `state` (docs/your-own.md, "Batch norm")'
            f"{OF_A_MEAN}"
        )
