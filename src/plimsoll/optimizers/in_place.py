"""Updates that change parameters and state where they lie, a piece at a time, with no temporaries of a leaf's size.

optax returns updates, which are as large as the parameters, and a leaf's temporaries are several times that where its
state has to be decoded first. `InPlace` is an optax transformation with a third function, `apply`, that does not return
updates but the parameters themselves; `over_pieces` is the loop it is made of.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from plimsoll.errors import RecipeError
from plimsoll.levers.offload import on_host

Apply = Callable[[Any, Any, Any], tuple[Any, Any]]

PIECE = 2**18
"""Elements of a piece: half as many take an eighth more time, twice as many none less. Accelerators want more."""
PIECE_BYTES = 16
"""Temporaries of an update, at most, per element of a piece: its new weights, moments and what lies between them."""


class InPlace(optax.GradientTransformation):
    """`init` and `update` as optax has them, and what lets state and parameters be smaller than float32.

    `store(params)` is the form in which float32 parameters are kept between steps, and `init(params)` belongs to it:
    give `init` the float32 parameters, too. The forward pass reads `levers.weight_bits.readable(stored)`.
    `apply(gradient, state, stored)` returns the next `(stored, state)`: donate both. `update(gradient, state, params)`
    is for what composes with optax: updates in float32, as large as the parameters.
    """

    apply: Apply
    store: Callable[[Any], Any]

    def __new__(cls, init: Any, update: Any, apply: Apply, store: Callable) -> "InPlace":
        made = super().__new__(cls, init, update)
        made.apply, made.store = apply, store
        return made


def whole(optimizer: optax.GradientTransformation) -> InPlace:
    """Any optax transformation, with float32 parameters: for a step that calls `apply` whatever the optimizer is."""

    def apply(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        if any(map(on_host, jax.tree.leaves(state))):
            raise RecipeError(
                "--offload optimizer needs an optimizer that can be updated a piece at a time, and nobody says so of"
                " this recipe's: return plimsoll.AdamW(...), or leave it out"
            )
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return InPlace(optimizer.init, optimizer.update, apply, lambda params: params)


def in_place(optimizer: optax.GradientTransformation) -> InPlace:
    """As it is, or as `whole` makes it."""
    return optimizer if isinstance(optimizer, InPlace) else whole(optimizer)


def over_pieces(
    change: Callable[[Array, Any, Any], Any], changed: Any, read: Any, *, rows: int, piece: int, token: Array
) -> tuple[Any, Array]:
    """`change(first_row, changed, read)` for pieces of `piece` rows, each result written over what it was made from.

    `changed` and `read` are pytrees of arrays whose first axis is `rows` long; `change` gets the same rows of all of
    them and returns new rows of `changed`. `token` is an int32 that is not negative; it is returned too, and what is
    given it then runs after all of this. Without that, XLA would hold the temporaries of many leaves at once.
    """

    def one(start: Array, count: int, changed: Any, token: Array) -> tuple[Any, Array]:
        def rows_of(tree: Any, start: Array) -> Any:
            return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, count), tree)

        def new_rows(start: Array, changed: Any, read: Any) -> Any:
            return change(start, rows_of(changed, start), rows_of(read, start))

        new, token = apart(new_rows, (start, changed, read), token)
        return jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, start, 0), changed, new), token

    piece = even(rows, piece)
    pieces, left = divmod(rows, piece)
    if pieces > 1:
        changed, token = lax.fori_loop(0, pieces, lambda i, carry: one(i * piece, piece, *carry), (changed, token))
    else:
        left = rows
    if left:
        changed, token = at_once(lambda *carry: one(jnp.int32(rows - left), left, *carry), changed, token)
    return changed, token


def even(rows: int, piece: int) -> int:
    """`piece`, or somewhat less where that divides the rows: what is left over has to be compiled on its own."""
    divisors = (size for size in range(min(rows, piece), piece // 2, -1) if rows % size == 0)
    return next(divisors, min(rows, piece))


def apart(function: Callable[..., Any], operands: tuple, token: Array) -> tuple[Any, Array]:
    """`function(*operands)`, not fused with what is around it, and the token after it.

    Fused with the update of a part, the compiler copies the whole array for each part. An optimization barrier keeps
    them apart, but on a CPU XLA removes it before it fuses. There it is a branch that is always taken, which the
    compiler cannot know: as few temporaries as with the barrier and that pass disabled, and no compiler option needed.
    """

    def branch(token: Array, *operands: Any) -> tuple[Any, Array]:
        def never(token: Array, *operands: Any) -> tuple[Any, Array]:
            shapes = jax.eval_shape(function, *operands)
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), token + 1

        return lax.cond(token >= 0, lambda token, *rest: (function(*rest), token), never, token, *operands)

    def barrier(token: Array, *operands: Any) -> tuple[Any, Array]:
        token, operands = lax.optimization_barrier((token, operands))
        return lax.optimization_barrier((function(*operands), token))

    return lax.platform_dependent(token, *operands, cpu=branch, default=barrier)


def at_once(function: Callable[[Any, Array], tuple[Any, Array]], carry: Any, token: Array) -> tuple[Any, Array]:
    """`function(carry, token)`, all of it before what is given the token it returns.

    On a CPU a loop of one round, of which the compiler knows neither that nor when it is over.
    """

    def loop(token: Array, carry: Any) -> tuple[Any, Array]:
        return lax.fori_loop(0, 1 + jnp.minimum(token, 0), lambda _, both: function(*both), (carry, token))

    def barrier(token: Array, carry: Any) -> tuple[Any, Array]:
        return lax.optimization_barrier(function(carry, token))

    return lax.platform_dependent(token, carry, cpu=loop, default=barrier)
