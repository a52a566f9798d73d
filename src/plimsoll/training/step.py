"""One optimizer step as one pure function, whatever the micro-batches are.

The walk of the data: batch -> micro-batches -> loss sums -> gradient -> update -> state. The loss is divided by
the weight of the whole effective batch before the backward pass, so that `accumulation` changes nothing but the
order of a sum.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from plimsoll.levers import loss_scale
from plimsoll.levers.frozen import FrozenBits, stored
from plimsoll.levers.offload import fetched
from plimsoll.levers.sharding import by_rows, like_state
from plimsoll.levers.weight_bits import learned, parts_of, read
from plimsoll.optimizers.in_place import in_place
from plimsoll.training.layerwise import make_layerwise_step
from plimsoll.types import Batch, LossSum, Precision, Task, Unstacks

State = dict[str, Any]
"""`step` (int32), `key` (key data), `params`, `optimizer`, `carry`, `ema` where one is kept: all that the next step
depends on."""


def make_init(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    frozen_bits: FrozenBits = 32,
    precision: Precision = "float32",
) -> Callable[[jax.Array], State]:
    """A function of the seed (uint32 scalar) to the state before the first step."""

    def init(seed: jax.Array) -> State:
        init_key, step_key = jax.random.split(jax.random.key(seed))
        params = task.init(init_key)
        if "frozen" in params:
            params = params | {"frozen": stored(params["frozen"], frozen_bits)}
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
                "carry": None,
            }
        )

    return init


def make_step(
    task: Task, optimizer: optax.GradientTransformation, *, accumulation: int, layerwise: int = 0
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """State and effective batch to the next state and this step's metrics. Donate the state.

    Where the state has a `loss_scale`, a step whose gradient overflows changes nothing but that and its own number.
    `layerwise` is the plan's: more than 0, and the step is training/layerwise.py.
    """
    if layerwise:
        return make_layerwise_step(task, optimizer, passes=layerwise, accumulation=accumulation)

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        examples = jax.tree.leaves(batch)[0].shape[0]
        micro = jax.tree.map(lambda x: by_rows(x.reshape(accumulation, -1, *x.shape[1:]), axis=1), dict(batch))
        key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
        keys = jax.vmap(lambda example: jax.random.fold_in(key, example))(jnp.arange(examples))
        keys = keys.reshape(accumulation, -1)

        gradient, loss, metrics = _gradient(task, state, micro, keys)
        scaling = state.get("loss_scale")
        finite = jnp.asarray(True)
        if scaling is not None:
            gradient, finite = loss_scale.unscaled(gradient, scaling)
        rule = in_place(optimizer)
        weights, optimizer_state = rule.apply(gradient, state["optimizer"], state["params"]["trainable"])
        new_state = state | {
            "step": state["step"] + 1,
            "params": state["params"] | {"trainable": weights},
            "optimizer": optimizer_state,
        }
        if rule.average:
            new_state["ema"] = rule.average.after(state["ema"], weights, state["step"])
        report = {name: total / weight for name, (total, weight) in metrics.items()}
        report |= {"loss": loss.total, "weight": loss.weight, "gradient_norm": optax.tree.norm(_float32(gradient))}
        if scaling is not None:
            kept = {name: state[name] for name in ("params", "optimizer", "ema") if name in state}
            new_state |= loss_scale.chosen(finite, {name: new_state[name] for name in kept}, kept)
            new_state["loss_scale"] = loss_scale.adjusted(scaling, finite)
            report |= {"scale": new_state["loss_scale"].scale, "skipped_steps": new_state["loss_scale"].skipped_steps}
        return new_state, report

    return step


def _gradient(task: Task, state: State, micro: Batch, keys: jax.Array) -> tuple[Any, LossSum, dict]:
    """Gradient of the mean loss over all micro-batches; `LossSum.total` is already divided by the weight."""
    params, stored, in_parts = state["params"], state["params"]["trainable"], parts_of(task)
    trainable = learned(stored, in_parts)
    trainable = task.unstack(trainable) if isinstance(task, Unstacks) else trainable

    def sums(trainable: Any, batch: Batch, keys: jax.Array) -> tuple[LossSum, Any, Any]:
        weights = {"trainable": read(trainable, stored, in_parts)}
        return task.loss(params | weights, None, batch, keys, train=True)

    def weight_of(batch: Batch, keys: jax.Array) -> jax.Array:
        return sums(trainable, batch, keys)[0].weight

    # The compiler drops the forward pass from this one: the weight depends on the labels only.
    weight = jnp.sum(jax.lax.map(lambda rows: weight_of(*rows), (micro, keys)))

    scale = state["loss_scale"].scale if "loss_scale" in state else jnp.float32(1)

    def mean_part(trainable: Any, batch: Batch, keys: jax.Array) -> tuple[jax.Array, dict]:
        loss, _carry, metrics = sums(trainable, batch, keys)
        return scale * (loss.total / weight), metrics

    def one(batch: Batch, keys: jax.Array) -> tuple[Any, jax.Array, dict]:
        (loss, metrics), gradient = jax.value_and_grad(mean_part, has_aux=True)(trainable, batch, keys)
        return like_state(gradient), loss, metrics

    if keys.shape[0] == 1:
        gradient, loss, metrics = one(jax.tree.map(lambda x: x[0], micro), keys[0])
    else:
        first = jax.eval_shape(one, jax.tree.map(lambda x: x[0], micro), keys[0])
        zeros = jax.tree.map(jnp.zeros_like, _float32(first))
        (gradient, loss, metrics), _ = jax.lax.scan(
            lambda sums, rows: (jax.tree.map(jnp.add, sums, _float32(one(*rows))), None), zeros, (micro, keys)
        )
    gradient = task.stack(gradient) if isinstance(task, Unstacks) else gradient
    return gradient, LossSum(loss / scale, weight), metrics


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
