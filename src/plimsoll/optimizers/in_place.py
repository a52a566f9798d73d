"""Updates that change parameters and state in place, a piece at a time, with no temporaries of a leaf's size.

optax returns updates, which are as large as the parameters. A leaf's temporaries are several times its size if its
state must be decoded first. `InPlace` is an optax transformation with a third function, `apply`, that returns the new
parameters instead of updates. `over_pieces` is the loop of `apply`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from plimsoll.errors import RecipeError
from plimsoll.levers.ema import Average
from plimsoll.levers.offload import on_host
from plimsoll.optimizers.sign_sgd import RowRule

Apply = Callable[[Any, Any, Any], tuple[Any, Any]]
Trees = tuple[Any, Any]
"""Stored parameters and optimizer state."""

PIECE = 7 * 2**16
"""Elements of a piece. With half as many, updating forty leaves of 0.4M elements takes 1.5 times as long."""


class Layer(NamedTuple):
    """One layer of stacked parameters."""

    stacked: str
    """Entry of the parameters whose leaves have a leading axis of layers."""
    number: Array
    """Index of the layer, int32 from 0."""


class Parts(NamedTuple):
    """Updates of one part of the parameters at a time, for rules that are elementwise except for a clip.

    `layer(trees, gradient, at, clip, token)` updates layer `at` of `trees` (weights and state) by its `gradient`, and
    returns the next trees and token (see `over_pieces`). `rest(trees, gradient, stacked, clip)` updates all entries but
    `stacked`. It is called after all layers, because it counts the step. The gradient is multiplied by `clip`, a
    float32 scalar that the caller computes from the norm of the whole gradient.
    """

    clip_norm: float | None
    layer: Callable[[Trees, Any, Layer, Array, Array], tuple[Trees, Array]]
    rest: Callable[[Trees, Any, str, Array], Trees]


class InPlace(optax.GradientTransformation):
    """An optax transformation whose state and parameters may be stored in fewer bits than float32.

    `store(params)` converts float32 parameters to the form in which they are stored between steps. `init(params)` takes
    the float32 parameters, too. The forward pass reads `levers.weight_bits.readable(stored)`.
    `apply(gradient, state, stored)` returns the next `(stored, state)`: donate both. `update(gradient, state, params)`
    is for composition with optax, and returns float32 updates, as large as the parameters.
    """

    apply: Apply
    store: Callable[[Any], Any]
    parts: Parts | None
    """Updates of parts; None for a rule that needs the whole gradient at once."""
    average: Average | None
    """Rule for an average (EMA) of the weights; None for no average."""
    row_rule: RowRule | None
    """Update rule for tables of which a step reads only some rows (`types.ReadsTables`); None without such tables."""

    def __new__(
        cls,
        init: Any,
        update: Any,
        apply: Apply,
        store: Callable,
        parts: Parts | None = None,
        average: Average | None = None,
        row_rule: RowRule | None = None,
    ) -> "InPlace":
        rule = super().__new__(cls, init, update)
        rule.apply, rule.store, rule.parts, rule.average, rule.row_rule = apply, store, parts, average, row_rule
        return rule


def in_place(
    optimizer: optax.GradientTransformation, *, average: Average | None = None, row_rule: RowRule | None = None
) -> InPlace:
    """Returns any optax transformation as an `InPlace`. Parameters are float32, unless it is an `InPlace` already.

    Args:
        optimizer: The transformation. An `InPlace` keeps its functions.
        average: Rule for an average of the weights; by default that of `optimizer`, if any.
        row_rule: Rule for the rows of tables (`types.ReadsTables`); by default that of `optimizer`, if any.
    """
    if isinstance(optimizer, InPlace):
        rule = optimizer
        average, row_rule = average or rule.average, row_rule or rule.row_rule
        return InPlace(rule.init, rule.update, rule.apply, rule.store, rule.parts, average, row_rule)

    def apply(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        if any(map(on_host, jax.tree.leaves(state))):
            raise RecipeError(
                "--offload optimizer needs an optimizer that can be updated a piece at a time, and this recipe's"
                " does not support that: take plimsoll.AdamW, Lion or AdamATan2, or leave --offload out"
            )
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return InPlace(optimizer.init, optimizer.update, apply, lambda params: params, None, average, row_rule)


def without(node: Any, stacked: str) -> Any:
    """Returns a dictionary without the entry `stacked`, and any other node unchanged."""
    return {name: part for name, part in node.items() if name != stacked} if isinstance(node, dict) else node


def over_pieces(
    change: Callable[[Array, Any, Any], Any],
    changed: Any,
    read: Any,
    *,
    rows: int,
    piece: int,
    token: Array,
    first: Array | int = 0,
) -> tuple[Any, Array]:
    """Applies `change(first_row, changed, read)` to pieces of `piece` rows, and writes each result over its input.

    `changed` and `read` are pytrees of arrays with `rows` rows. `change` gets the same rows of all arrays, and returns
    new rows of `changed`. Arrays of `changed` may have more rows: then `rows` rows from index `first` are changed, and
    `first_row` is an index into `changed`. `token` is a nonnegative int32 that orders updates: an update that gets the
    returned token runs after this one. Otherwise XLA would hold the temporaries of many leaves at once.
    """

    def one_piece(start: Array, count: int, changed: Any, token: Array) -> tuple[Any, Array]:
        row = first + start

        def new_rows(start: Array, row: Array, changed: Any, read: Any) -> Any:
            rows_now = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, row, count), changed)
            return change(row, rows_now, jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, count), read))

        new, token = apart(new_rows, (start, row, changed, read), token)
        return jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, row, 0), changed, new), token

    divisors = (size for size in range(min(rows, piece), piece // 2, -1) if rows % size == 0)
    piece = next(divisors, min(rows, piece))  # a divisor, because a remainder would be compiled separately
    pieces, left = divmod(rows, piece)
    if pieces > 1:
        changed, token = lax.fori_loop(
            0, pieces, lambda i, carry: one_piece(i * piece, piece, *carry), (changed, token)
        )
    elif left:
        changed, token = at_once(lambda *carry: one_piece(jnp.int32(0), piece, *carry), changed, token)
    else:
        left = rows
    if left:
        changed, token = at_once(lambda *carry: one_piece(jnp.int32(rows - left), left, *carry), changed, token)
    return changed, token


def over_layer(
    change: Callable[[Array, Any, Any], Any], stacked: Any, layer: Array, number: Array, token: Array
) -> tuple[Any, Array]:
    """Applies `over_pieces` to one layer of `stacked`.

    `stacked` holds arrays of (layers, *shape), of which layer `number` is changed. `change` reads `layer`, an array of
    (*shape), like a gradient.
    """
    rows = layer.shape[0] if layer.ndim > 1 else 1
    read = layer.reshape(rows, -1)
    new, token = over_pieces(
        change,
        jax.tree.map(lambda x: x.reshape(-1, read.shape[1]), stacked),
        read,
        rows=rows,
        piece=max(1, PIECE // read.shape[1]),
        token=token,
        first=number * rows,
    )
    return jax.tree.map(lambda x, was: x.reshape(was.shape), new, stacked), token


def apart(function: Callable[..., Any], operands: tuple, token: Array) -> tuple[Any, Array]:
    """Returns `function(*operands)`, not fused with its surroundings, and the next token (`over_pieces`).

    If XLA fused the function with the write of a piece, it would copy the whole array for each piece. An optimization
    barrier prevents that, but XLA for CPU removes barriers before it fuses. There a conditional replaces the barrier:
    the same branch is always taken, which the compiler cannot know.
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
    """Returns `function(carry, token)`, computed before any operation that gets the returned token (`over_pieces`).

    On a CPU the function runs in a loop of one iteration, which the compiler keeps because it cannot know the number.
    """

    def loop(token: Array, carry: Any) -> tuple[Any, Array]:
        return lax.fori_loop(0, 1 + jnp.minimum(token, 0), lambda _, both: function(*both), (carry, token))

    def barrier(token: Array, carry: Any) -> tuple[Any, Array]:
        return lax.optimization_barrier(function(carry, token))

    return lax.platform_dependent(token, carry, cpu=loop, default=barrier)
