"""One optimizer step as one pure function, whatever the micro-batches are.

The path of the data: batch -> micro-batches -> loss sums -> gradient -> update -> state. The loss is divided by
the weight of the whole effective batch before the backward pass, so that `accumulation` changes nothing but the
order of a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from plimsoll.levers import loss_scale
from plimsoll.levers.frozen import FrozenBits, stored
from plimsoll.levers.offload import fetched
from plimsoll.levers.remat import restacked, unstacked
from plimsoll.levers.sharding import each_copy, in_micro_batches, joined, like_state, over_copies
from plimsoll.levers.weight_bits import learned, parts_of, read
from plimsoll.optimizers.in_place import InPlace, in_place
from plimsoll.optimizers.norm import global_norm, norms_of_parts
from plimsoll.planned import Plan
from plimsoll.training.layerwise import make_layerwise_step
from plimsoll.types import (
    STATE,
    Batch,
    Carries,
    LossSum,
    Metrics,
    Norms,
    Passes,
    Precision,
    ReadsTables,
    Stacks,
    StepOptions,
    StoresFrozen,
    Task,
    Unrolls,
)

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


@dataclass(frozen=True, kw_only=True)
class StepSpec:
    """How a step is computed: what a plan says of it, and the user's options."""

    accumulation: int
    """Micro-batches of an effective batch."""
    layerwise: Passes = 0
    inputs_on_host: bool = False
    """Whether inputs of layers wait in the host's memory for the backward pass, where it is layer by layer."""
    few_sums: bool = False
    """Whether gradients cross from copy to copy of the state some MiB at a time, not leaf by leaf."""
    norms: Norms = "global"

    @classmethod
    def of(cls, plan: Plan, options: StepOptions) -> StepSpec:
        """Returns how the step of a plan is computed."""
        return cls(
            accumulation=plan.accumulation,
            layerwise=plan.lever("layerwise"),
            inputs_on_host=plan.lever("remat") == "offload",
            few_sums=plan.chip == "cpu",
            norms=options.norms,
        )


class Shared(NamedTuple):
    """What a step learns of all examples together."""

    gradient: Any
    """Gradient of the mean loss for the weights."""
    loss: LossSum
    """Its total is already divided by the weight."""
    metrics: Metrics


class OfExamples(NamedTuple):
    """What a step learns of each example."""

    row_gradients: Any
    """Gradients for the rows of tables that it reads."""
    carry: Any


def make_step(
    task: Task, optimizer: optax.GradientTransformation, spec: StepSpec
) -> Callable[[State, Batch], tuple[State, Report]]:
    """Returns a function of state and effective batch to the next state and the step's metrics. Donate the state.

    Where the state has a `loss_scale`, a step whose gradient overflows changes nothing but that and its own number.
    With `layerwise`, the step is that of training/layerwise.py.
    """
    rule = in_place(optimizer)
    if spec.layerwise:
        assert spec.accumulation == 1, "a gradient that is summed over micro-batches is whole"
        on_host = spec.inputs_on_host
        return make_layerwise_step(task, rule, passes=spec.layerwise, inputs_on_host=on_host, norms=spec.norms)

    def step(state: State, batch: Batch) -> tuple[State, Report]:
        return _taken(task, rule, spec, state, batch)

    return step


def _taken(task: Task, rule: InPlace, spec: StepSpec, state: State, batch: Batch) -> tuple[State, Report]:
    """Returns the next state and the metrics of a step."""
    # Each example has a key of its own, and rows of tables that it reads.
    keys = _keys_of(state, batch)
    tables = state["params"].get("tables", {})
    read_rows = dict(task.rows(state["carry"], batch)) if isinstance(task, ReadsTables) else {}
    rows = {name: tables[name][ids] for name, ids in read_rows.items()}

    # The gradient, over micro-batches and over all copies of the state.
    inputs = {"batch": dict(batch), "keys": keys, "rows": rows}
    whole = {"inputs": inputs, "carry": state["carry"]}
    split = jax.tree.map(lambda x: in_micro_batches(x, spec.accumulation), whole)
    read = {name: state[name] for name in ("params", "loss_scale") if name in state}
    gradient_of = partial(_gradient, task, few_sums=spec.few_sums)
    (gradient, loss, metrics), (row_gradients, carry) = each_copy(gradient_of, read, split)
    finite = jnp.asarray(True)
    if "loss_scale" in state:
        (gradient, row_gradients), finite = loss_scale.unscaled((gradient, row_gradients), state["loss_scale"])

    # The update.
    new_state = _updated(rule, state, gradient)
    new_state["carry"] = jax.tree.map(joined, carry)
    model_state = metrics.pop(STATE, None)
    if model_state is not None:
        new_state["params"][STATE] = _mean_of_groups(model_state, state["params"][STATE])
    report = {**metrics, "loss": loss.total, "weight": loss.weight, **_norms(task, gradient, spec.norms)}
    if "loss_scale" in state:
        new_state = _unless_overflown(new_state, state, finite)
        report |= {"scale": new_state["loss_scale"].scale, "skipped_steps": new_state["loss_scale"].skipped_steps}

    # Tables after that choice, which would hold a second copy of them.
    if read_rows:
        assert rule.row_rule is not None, "an optimizer of tables: `row_rule` of optimizers.in_place"
        gradients = jax.tree.map(joined, row_gradients)
        new_tables = rule.row_rule.after(tables, read_rows, gradients, step=state["step"], taken=finite)
        new_state["params"] = new_state["params"] | {"tables": new_tables}
    return new_state, report


def _keys_of(state: State, batch: Batch) -> jax.Array:
    """Returns a key for each example of a step."""
    examples = jax.tree.leaves(batch)[0].shape[0]
    key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
    return jax.vmap(lambda example: jax.random.fold_in(key, example))(jnp.arange(examples))


def _updated(rule: InPlace, state: State, gradient: Any) -> State:
    """Returns the state after the update of the weights."""
    weights, optimizer_state = rule.apply(gradient, state["optimizer"], state["params"]["trainable"])
    new_state = state | {
        "step": state["step"] + 1,
        "params": state["params"] | {"trainable": weights},
        "optimizer": optimizer_state,
    }
    if rule.average:
        new_state["ema"] = rule.average.after(state["ema"], weights, state["step"])
    return new_state


def _norms(task: Task, gradient: Any, norms: Norms) -> dict[str, jax.Array]:
    """Returns the gradient's norm, and those of its layers and parts where they are wanted."""
    report = {"gradient_norm": global_norm(gradient)}
    if norms == "layers":
        stacked = task.stacked if isinstance(task, Stacks) else None
        report |= norms_of_parts(gradient, stacked=stacked)
    return report


def _unless_overflown(new_state: State, state: State, finite: jax.Array) -> State:
    """Returns the new state, with the next scale of the loss; where the gradient overflowed, else the old one."""
    kept = {name: state[name] for name in ("params", "optimizer", "ema", "carry") if name in state}
    chosen = loss_scale.chosen(finite, {name: new_state[name] for name in kept}, kept)
    return new_state | chosen | {"loss_scale": loss_scale.adjusted(state["loss_scale"], finite)}


def _gradient(task: Task, state: State, split: Any, *, few_sums: bool = False) -> tuple[Shared, OfExamples]:
    """Returns the gradient of the mean loss over all micro-batches.

    `split` has `inputs` (batch, keys and rows) and `carry`, with a leading axis of micro-batches, and so has what is
    returned of each example.
    """
    carry, inputs = split["carry"], split["inputs"]
    stored, in_parts = state["params"]["trainable"], parts_of(task)
    trainable = learned(stored, in_parts)
    unrolled = task.unrolled if isinstance(task, Unrolls) else ()
    if unrolled:
        trainable = changed_at(unrolled, trainable, unstacked)

    def sums(trainable: Any, rows: Any, carry: Any, micro: Any) -> tuple[LossSum, Any, Any]:
        weights = {"trainable": read(trainable, stored, in_parts)} | ({"rows": rows} if rows else {})
        return task.loss(state["params"] | weights, carry, micro["batch"], micro["keys"], train=True)

    # The compiler drops the forward pass from this one: the weight depends on the labels only.
    parts = jax.lax.map(lambda part: sums(trainable, part[1]["rows"], *part)[0].weight, (carry, inputs))
    weight = over_copies(jnp.sum(parts))
    scale = state["loss_scale"].scale if "loss_scale" in state else jnp.float32(1)

    def mean_part(trainable: Any, rows: Any, carry: Any, micro: Any) -> tuple[jax.Array, tuple[Any, dict]]:
        loss, carry, metrics = sums(trainable, rows, carry, micro)
        return scale * (loss.total / weight), (carry, metrics)

    def micro_batch(carry: Any, micro: Any) -> tuple[Any, OfExamples]:
        """Returns the sums of one micro-batch (gradient, loss, metrics), and what is kept of each of its examples."""
        gradients_of = jax.value_and_grad(mean_part, argnums=(0, 1), has_aux=True)
        (loss, (carry, metrics)), (gradient, row_gradients) = gradients_of(trainable, micro["rows"], carry, micro)
        return (like_state(gradient), loss, metrics), OfExamples(row_gradients, carry)

    def shapes(carry: Any, micro: Any) -> Any:
        """Returns what has the shapes of `micro_batch`'s sums, without tracing the gradient."""
        _, _, metrics = sums(trainable, micro["rows"], carry, micro)
        return like_state(trainable), scale, metrics

    (gradient, loss, metrics), of_examples = _over_micro_batches(micro_batch, shapes, carry, inputs)
    gradient, loss, metrics = over_copies((gradient, loss, metrics), in_few=few_sums)
    if unrolled:
        gradient = changed_at(unrolled, gradient, restacked)
    return Shared(gradient, LossSum(loss / scale, weight), metrics), of_examples


def _over_micro_batches(
    micro_batch: Callable[[Any, Any], tuple[Any, OfExamples]],
    shapes: Callable[[Any, Any], Any],
    carry: Any,
    inputs: Any,
) -> tuple[Any, OfExamples]:
    """Returns the sums over micro-batches, and what is kept of each example of each.

    Args:
        micro_batch: From one micro-batch's carry and inputs to its sums and its examples.
        shapes: From the same to anything with the shapes of the sums.
        carry: Carry of all, with a leading axis of micro-batches.
        inputs: Inputs of all.
    """

    def of(tree: Any, number: Any) -> Any:
        return jax.tree.map(lambda x: x[number], tree)

    if inputs["keys"].shape[0] == 1:
        sums, of_examples = micro_batch(of(carry, 0), of(inputs, 0))
        return sums, jax.tree.map(lambda x: x[None], of_examples)

    def add(before: Any, numbered: Any) -> Any:
        (total, carry), (number, micro) = before, numbered
        part, (row_gradients, new) = micro_batch(of(carry, number), micro)
        carry = jax.tree.map(lambda whole, x: whole.at[number].set(x), carry, new)  # in place
        return (jax.tree.map(jnp.add, total, _float32(part)), carry), row_gradients

    like = jax.eval_shape(shapes, of(carry, 0), of(inputs, 0))
    zeros = jax.tree.map(jnp.zeros_like, _float32(like))
    numbers = jnp.arange(inputs["keys"].shape[0])
    (sums, carry), row_gradients = jax.lax.scan(add, (zeros, carry), (numbers, inputs))
    return sums, OfExamples(row_gradients, carry)


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
