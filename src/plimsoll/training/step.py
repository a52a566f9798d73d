"""One optimizer step as one pure function, whatever the micro-batches are.

The path of the data: batch -> micro-batches -> loss sums -> gradient -> update -> state. The loss is divided by
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
from plimsoll.levers.remat import restacked, unstacked
from plimsoll.levers.sharding import each_copy, in_micro_batches, joined, like_state, over_copies
from plimsoll.levers.weight_bits import learned, parts_of, read
from plimsoll.optimizers.in_place import in_place
from plimsoll.optimizers.norm import global_norm
from plimsoll.training.layerwise import make_layerwise_step
from plimsoll.types import STATE, Batch, Carries, LossSum, Precision, ReadsTables, StoresFrozen, Task, Unrolls

State = dict[str, Any]
"""All that the next step depends on: `step` (int32), `key` (key data), `params`, `optimizer`, `carry` (None of most
tasks), and `ema` where one is kept."""
Report = dict[str, jax.Array | LossSum]
"""Metrics of a step: numbers, and sums to be divided where their weight is not zero."""


def make_init(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    frozen_bits: FrozenBits = 32,
    precision: Precision = "float32",
    examples: int | None = None,
) -> Callable[[jax.Array], State]:
    """Returns a function of the seed (uint32 scalar) to the state before the first step.

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
        state = {
            **scale,
            **average,
            "step": jnp.int32(0),
            "key": jax.random.key_data(step_key),
            "params": params | {"trainable": weights},
            "optimizer": rule.init(params["trainable"]),
            "carry": None,
        }
        if isinstance(task, Carries):
            assert examples is not None, "a carry is of so many examples"
            state["carry"] = task.start(examples)
        return state

    return init


def make_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    accumulation: int,
    layerwise: int = 0,
    inputs_on_host: bool = False,
    few_sums: bool = False,
) -> Callable[[State, Batch], tuple[State, Report]]:
    """Returns a function of state and effective batch to the next state and the step's metrics. Donate the state.

    Where the state has a `loss_scale`, a step whose gradient overflows changes nothing but that and its own number.
    `layerwise` is the plan's: above 0, the step is that of training/layerwise.py, which `inputs_on_host` belongs to.
    With `few_sums`, gradients cross from copy to copy of the state some MiB at a time, not leaf by leaf.
    """
    if layerwise:
        return make_layerwise_step(
            task, optimizer, passes=layerwise, accumulation=accumulation, inputs_on_host=inputs_on_host
        )

    def step(state: State, batch: Batch) -> tuple[State, Report]:
        examples = jax.tree.leaves(batch)[0].shape[0]
        key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
        keys = jax.vmap(lambda example: jax.random.fold_in(key, example))(jnp.arange(examples))
        tables, read_rows = state["params"].get("tables", {}), {}
        if isinstance(task, ReadsTables):
            read_rows = dict(task.rows(state["carry"], batch))
        rows = {name: tables[name][ids] for name, ids in read_rows.items()}
        inputs = {"batch": dict(batch), "keys": keys, "rows": rows}
        split = jax.tree.map(lambda x: in_micro_batches(x, accumulation), {"inputs": inputs, "carry": state["carry"]})
        read = {name: state[name] for name in ("params", "loss_scale") if name in state}
        (gradient, loss, metrics), (row_gradients, carry) = each_copy(
            partial(_gradient, task, few_sums=few_sums), read, split
        )
        scaling = state.get("loss_scale")
        finite = jnp.asarray(True)
        if scaling is not None:
            (gradient, row_gradients), finite = loss_scale.unscaled((gradient, row_gradients), scaling)
        rule = in_place(optimizer)
        weights, optimizer_state = rule.apply(gradient, state["optimizer"], state["params"]["trainable"])
        new_state = state | {
            "step": state["step"] + 1,
            "params": state["params"] | {"trainable": weights},
            "optimizer": optimizer_state,
            "carry": jax.tree.map(joined, carry),
        }
        if STATE in metrics:
            new_state["params"][STATE] = _mean_of_groups(metrics.pop(STATE), state["params"][STATE])
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
            assert rule.row_rule is not None, "an optimizer of tables: `row_rule` of optimizers.in_place"
            gradients = jax.tree.map(joined, row_gradients)
            new_tables = rule.row_rule.after(tables, read_rows, gradients, step=state["step"], taken=finite)
            new_state["params"] = new_state["params"] | {"tables": new_tables}
        return new_state, report

    return step


def _gradient(
    task: Task, state: State, split: Any, *, few_sums: bool = False
) -> tuple[tuple[Any, LossSum, dict], tuple[Any, Any]]:
    """Returns the gradient of the mean loss over all micro-batches for the weights, and the loss and metrics; for each
    example the gradient for its rows of tables, and the next carry.

    `split` has `inputs` (batch, keys and rows) and `carry`, with a leading axis of micro-batches, and so have the
    results for rows and carry. `LossSum.total` is already divided by the weight.
    """
    inputs, carry = split["inputs"], split["carry"]
    params, stored, in_parts = state["params"], state["params"]["trainable"], parts_of(task)
    trainable = learned(stored, in_parts)
    unrolled = task.unrolled if isinstance(task, Unrolls) else ()
    if unrolled:
        trainable = changed_at(unrolled, trainable, unstacked)

    def sums(trainable: Any, rows: Any, carry: Any, micro: Any) -> tuple[LossSum, Any, Any]:
        weights = {"trainable": read(trainable, stored, in_parts)} | ({"rows": rows} if rows else {})
        return task.loss(params | weights, carry, micro["batch"], micro["keys"], train=True)

    # The compiler drops the forward pass from this one: the weight depends on the labels only.
    parts = jax.lax.map(lambda part: sums(trainable, part[1]["rows"], *part)[0].weight, (carry, inputs))
    weight = over_copies(jnp.sum(parts))

    scale = state["loss_scale"].scale if "loss_scale" in state else jnp.float32(1)

    def mean_part(trainable: Any, rows: Any, carry: Any, micro: Any) -> tuple[jax.Array, tuple[Any, dict]]:
        loss, carry, metrics = sums(trainable, rows, carry, micro)
        return scale * (loss.total / weight), (carry, metrics)

    def micro_batch(carry: Any, micro: Any) -> tuple[Any, Any]:
        """Returns sums of gradients and metrics, added up over micro-batches, and rows and carry, kept of each."""
        gradients_of = jax.value_and_grad(mean_part, argnums=(0, 1), has_aux=True)
        (loss, (carry, metrics)), (gradient, row_gradients) = gradients_of(trainable, micro["rows"], carry, micro)
        return (like_state(gradient), loss, metrics), (row_gradients, carry)

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[0], tree)

    if inputs["keys"].shape[0] == 1:
        (gradient, loss, metrics), each = micro_batch(first(carry), first(inputs))
        row_gradients, carry = jax.tree.map(lambda x: x[None], each)
    else:

        def add(sums: Any, numbered: Any) -> Any:
            (total, carry), (number, micro) = sums, numbered
            part, (row_gradients, new) = micro_batch(jax.tree.map(lambda x: x[number], carry), micro)
            carry = jax.tree.map(lambda whole, x: whole.at[number].set(x), carry, new)  # in place
            return (jax.tree.map(jnp.add, total, _float32(part)), carry), row_gradients

        def summed(carry: Any, micro: Any) -> Any:
            """Returns what has the shapes of `micro_batch`'s sums, without tracing the gradient."""
            _, _, metrics = sums(trainable, micro["rows"], carry, micro)
            return like_state(trainable), scale, metrics

        shapes = jax.eval_shape(summed, first(carry), first(inputs))
        zeros = jax.tree.map(jnp.zeros_like, _float32(shapes))
        numbers = jnp.arange(inputs["keys"].shape[0])
        ((gradient, loss, metrics), carry), row_gradients = jax.lax.scan(add, (zeros, carry), (numbers, inputs))
    gradient, loss, metrics = over_copies((gradient, loss, metrics), in_few=few_sums)
    if unrolled:
        gradient = changed_at(unrolled, gradient, restacked)
    return (gradient, LossSum(loss / scale, weight), metrics), (row_gradients, carry)


def changed_at(path: tuple[str, ...], tree: Any, change: Callable[[Any], Any]) -> Any:
    """Returns nested dictionaries in which what stands at a path was changed."""
    if not path:
        return change(tree)
    return tree | {path[0]: changed_at(path[1:], tree[path[0]], change)}


def _mean_of_groups(sums: LossSum, before: Any) -> Any:
    """Returns the mean over groups of examples of what each made of the model's state, in the types of `before`."""

    def mean(total: jax.Array, leaf: jax.Array) -> jax.Array:
        whole = jnp.issubdtype(leaf.dtype, jnp.integer)  # a count, which is the same of all groups
        return (total // sums.weight if whole else total / sums.weight).astype(leaf.dtype)

    return jax.tree.map(mean, sums.total, before)


def _float32(tree: Any) -> Any:
    """Widens gradients of bfloat16 weights, which come in that type, so that they are summed in float32.

    Takes arrays or shapes.
    """

    def widened(leaf: Any) -> Any:
        if leaf.dtype != jnp.bfloat16:
            return leaf
        return leaf.astype(jnp.float32) if isinstance(leaf, jax.Array) else jax.ShapeDtypeStruct(leaf.shape, "float32")

    return jax.tree.map(widened, tree)


def evaluated(state: Any) -> Any:
    """Returns the parameters that are evaluated and sampled: with the average of the weights, where one is kept."""
    return state["params"] | ({"trainable": state["ema"]} if "ema" in state else {})


def make_evaluate(task: Task) -> Callable[[Any, Batch], dict[str, LossSum]]:
    """Returns a function of parameters and a batch to sums; the caller adds them up over the set and divides once."""

    def evaluate(params: Any, batch: Batch) -> dict[str, LossSum]:
        examples = jax.tree.leaves(batch)[0].shape[0]
        keys = jax.vmap(jax.random.key)(jnp.zeros(examples, jnp.uint32))
        stored, in_parts = fetched(params["trainable"]), parts_of(task)
        params = params | {"trainable": read(learned(stored, in_parts), stored, in_parts)}
        loss, _carry, metrics = task.loss(params, None, batch, keys, train=False)
        return metrics | {"loss": loss}

    return evaluate
