"""One optimizer step as one pure function, whatever the micro-batches are.

The walk of the data: batch -> micro-batches -> loss sums -> gradient -> update -> state. The loss is divided by
the weight of the whole effective batch before the backward pass, so that `accumulation` changes nothing but the
order of a sum.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from plimsoll.levers import loss_scale
from plimsoll.levers.frozen import FrozenBits, stored
from plimsoll.levers.offload import fetched
from plimsoll.levers.sharding import each_copy, in_micro_batches, joined, like_state, over_copies
from plimsoll.levers.weight_bits import learned, parts_of, read
from plimsoll.optimizers.in_place import in_place
from plimsoll.optimizers.norm import global_norm
from plimsoll.training.layerwise import make_layerwise_step
from plimsoll.types import Batch, Carries, LossSum, Precision, ReadsTables, StoresFrozen, Task, Unstacks

State = dict[str, Any]
"""`step` (int32), `key` (key data), `params`, `optimizer`, `carry` (None of most tasks), `ema` where one is kept: all
that the next step depends on."""
Report = dict[str, jax.Array | LossSum]
"""What a step tells: numbers, and what is to be divided where its weight is not zero."""


def make_init(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    frozen_bits: FrozenBits = 32,
    precision: Precision = "float32",
    examples: int | None = None,
) -> Callable[[jax.Array], State]:
    """A function of the seed (uint32 scalar) to the state before the first step.

    `examples` are those of an effective batch: a task that carries something from step to step does so for each.
    """

    def init(seed: jax.Array) -> State:
        init_key, step_key = jax.random.split(jax.random.key(seed))
        params = task.init(init_key)
        if "frozen" in params:
            keep = task.stored if isinstance(task, StoresFrozen) else stored
            params = params | {"frozen": keep(params["frozen"], frozen_bits)}
        rule = in_place(optimizer)
        scale = {"loss_scale": loss_scale.start()} if precision == "float16" else {}
        weights = rule.store(params["trainable"])
        average = {"ema": rule.average.start(weights)} if rule.average else {}
        return (
            scale
            | average
            | {
                "step": jnp.int32(0),
                "key": jax.random.key_data(step_key),
                "params": params | {"trainable": weights},
                "optimizer": rule.init(params["trainable"]),
                "carry": _start(task, examples),
            }
        )

    return init


def _start(task: Task, examples: int | None) -> Any:
    if not isinstance(task, Carries):
        return None
    assert examples is not None, "a carry is of so many examples"
    return task.start(examples)


def make_step(
    task: Task, optimizer: optax.GradientTransformation, *, accumulation: int, layerwise: int = 0
) -> Callable[[State, Batch], tuple[State, Report]]:
    """State and effective batch to the next state and what this step tells. Donate the state.

    Where the state has a `loss_scale`, a step whose gradient overflows changes nothing but that and its own number.
    `layerwise` is the plan's: more than 0, and the step is training/layerwise.py.
    """
    if layerwise:
        return make_layerwise_step(task, optimizer, passes=layerwise, accumulation=accumulation)

    def step(state: State, batch: Batch) -> tuple[State, Report]:
        examples = jax.tree.leaves(batch)[0].shape[0]
        key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
        keys = jax.vmap(lambda example: jax.random.fold_in(key, example))(jnp.arange(examples))
        tables, read_rows = state["params"].get("tables", {}), {}
        if isinstance(task, ReadsTables):
            read_rows = dict(task.rows(state["carry"], batch))
        rows = {name: tables[name][ids] for name, ids in read_rows.items()}
        taken = {"batch": dict(batch), "keys": keys, "rows": rows}
        given = jax.tree.map(lambda x: in_micro_batches(x, accumulation), {"taken": taken, "carry": state["carry"]})
        read = {name: state[name] for name in ("params", "loss_scale") if name in state}
        (gradient, loss, metrics), (of_rows, carry) = each_copy(partial(_gradient, task), read, given)
        scaling = state.get("loss_scale")
        finite = jnp.asarray(True)
        if scaling is not None:
            (gradient, of_rows), finite = loss_scale.unscaled((gradient, of_rows), scaling)
        rule = in_place(optimizer)
        weights, optimizer_state = rule.apply(gradient, state["optimizer"], state["params"]["trainable"])
        new_state = state | {
            "step": state["step"] + 1,
            "params": state["params"] | {"trainable": weights},
            "optimizer": optimizer_state,
            "carry": jax.tree.map(joined, carry),
        }
        if rule.average:
            new_state["ema"] = rule.average.after(state["ema"], weights, state["step"])
        report = {**metrics, "loss": loss.total, "weight": loss.weight}
        report["gradient_norm"] = global_norm(gradient)
        if scaling is not None:
            kept = {name: state[name] for name in ("params", "optimizer", "ema", "carry") if name in state}
            new_state |= loss_scale.chosen(finite, {name: new_state[name] for name in kept}, kept)
            new_state["loss_scale"] = loss_scale.adjusted(scaling, finite)
            report |= {"scale": new_state["loss_scale"].scale, "skipped_steps": new_state["loss_scale"].skipped_steps}
        if read_rows:  # after the choice above, which would hold a second copy of them
            assert rule.row_rule is not None, "an optimizer of tables: optimizers.in_place.with_tables"
            flowing = jax.tree.map(joined, of_rows)
            after = rule.row_rule.after(tables, read_rows, flowing, step=state["step"], taken=finite)
            new_state["params"] = new_state["params"] | {"tables": after}
        return new_state, report

    return step


def _gradient(task: Task, state: State, split: Any) -> tuple[tuple[Any, LossSum, dict], tuple[Any, Any]]:
    """Of the mean loss over all micro-batches: the gradient for weights, the loss and metrics; for each example the
    gradient for its rows of tables, and the next carry.

    `split` has `taken` (batch, keys and rows) and `carry`, with a leading axis of micro-batches, and so has what is
    made of rows and carry. `LossSum.total` is already divided by the weight.
    """
    taken, carry = split["taken"], split["carry"]
    params, stored, in_parts = state["params"], state["params"]["trainable"], parts_of(task)
    trainable = learned(stored, in_parts)
    trainable = task.unstack(trainable) if isinstance(task, Unstacks) else trainable

    def sums(trainable: Any, rows: Any, carry: Any, given: Any) -> tuple[LossSum, Any, Any]:
        weights = {"trainable": read(trainable, stored, in_parts)} | ({"rows": rows} if rows else {})
        return task.loss(params | weights, carry, given["batch"], given["keys"], train=True)

    def weight_of(carry: Any, given: Any) -> jax.Array:
        return sums(trainable, given["rows"], carry, given)[0].weight

    # The compiler drops the forward pass from this one: the weight depends on the labels only.
    weight = over_copies(jnp.sum(jax.lax.map(lambda rows: weight_of(*rows), (carry, taken))))

    scale = state["loss_scale"].scale if "loss_scale" in state else jnp.float32(1)

    def mean_part(trainable: Any, rows: Any, carry: Any, given: Any) -> tuple[jax.Array, tuple[Any, dict]]:
        loss, carry, metrics = sums(trainable, rows, carry, given)
        return scale * (loss.total / weight), (carry, metrics)

    def one(carry: Any, given: Any) -> tuple[Any, Any]:
        """What is summed over micro-batches, and what is of each."""
        of_both = jax.value_and_grad(mean_part, argnums=(0, 1), has_aux=True)
        (loss, (carry, metrics)), (gradient, of_rows) = of_both(trainable, given["rows"], carry, given)
        return (like_state(gradient), loss, metrics), (of_rows, carry)

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[0], tree)

    if taken["keys"].shape[0] == 1:
        (gradient, loss, metrics), each = one(first(carry), first(taken))
        of_rows, carry = jax.tree.map(lambda x: x[None], each)
    else:

        def add(sums: Any, numbered: Any) -> Any:
            (total, carry), (number, given) = sums, numbered
            part, (of_rows, new) = one(jax.tree.map(lambda x: x[number], carry), given)
            carry = jax.tree.map(lambda whole, x: whole.at[number].set(x), carry, new)  # where it lies
            return (jax.tree.map(jnp.add, total, _float32(part)), carry), of_rows

        shapes, _ = jax.eval_shape(one, first(carry), first(taken))
        zeros = jax.tree.map(jnp.zeros_like, _float32(shapes))
        numbers = jnp.arange(taken["keys"].shape[0])
        ((gradient, loss, metrics), carry), of_rows = jax.lax.scan(add, (zeros, carry), (numbers, taken))
    gradient, loss, metrics = over_copies((gradient, loss, metrics))
    gradient = task.stack(gradient) if isinstance(task, Unstacks) else gradient
    return (gradient, LossSum(loss / scale, weight), metrics), (of_rows, carry)


def _float32(tree: Any) -> Any:
    """Gradients of bfloat16 weights come in that type; they are summed in this one. Arrays or shapes."""

    def one(leaf: Any) -> Any:
        if leaf.dtype != jnp.bfloat16:
            return leaf
        return leaf.astype(jnp.float32) if isinstance(leaf, jax.Array) else jax.ShapeDtypeStruct(leaf.shape, "float32")

    return jax.tree.map(one, tree)


def evaluated(state: Any) -> Any:
    """The parameters that are evaluated and sampled: with the average of the weights, where one is kept."""
    return state["params"] | ({"trainable": state["ema"]} if "ema" in state else {})


def make_evaluate(task: Task) -> Callable[[Any, Batch], dict[str, LossSum]]:
    """Parameters and one batch to sums; the caller adds them up over the set and divides once."""

    def evaluate(params: Any, batch: Batch) -> dict[str, LossSum]:
        examples = jax.tree.leaves(batch)[0].shape[0]
        keys = jax.vmap(jax.random.key)(jnp.zeros(examples, jnp.uint32))
        stored, in_parts = fetched(params["trainable"]), parts_of(task)
        params = params | {"trainable": read(learned(stored, in_parts), stored, in_parts)}
        loss, _carry, metrics = task.loss(params, None, batch, keys, train=False)
        return metrics | {"loss": loss}

    return evaluate
