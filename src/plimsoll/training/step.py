"""One optimizer step as one pure function, with any number of micro-batches.

Data flow: batch -> micro-batches -> loss sums -> gradient -> update -> state. The loss is divided by the weight of the
whole effective batch before the backward pass. So `accumulation` changes only the order of a sum.
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
"""Training state: `step` (int32), `key` (key data), `params`, `optimizer`, `carry` (state of each example for
the next step, None for most models), `ema` if the weights are averaged, and `loss_scale` in float16."""
Report = dict[str, jax.Array | LossSum]
"""Metrics of a step: scalars, or sums with their weights. A mean with weight zero is not reported."""


def make_init(
    task: Task,
    optimizer: optax.GradientTransformation,
    *,
    frozen_bits: FrozenBits = 32,
    precision: Precision = "float32",
    examples: int | None = None,
) -> Callable[[jax.Array], State]:
    """Returns a function from the seed (uint32 scalar) to the initial state.

    Args:
        task: The model and its loss.
        optimizer: The optimizer of `task`.
        frozen_bits: Bits in which frozen weights are stored.
        precision: Precision of matmuls; float16 adds a loss scale to the state.
        examples: Number of examples for which the state has a carry; needed only for models with a carry.
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
            assert examples is not None, "a task with a carry needs the number of examples"
            state["carry"] = task.start(examples)
        return state

    return init


@dataclass(frozen=True, kw_only=True)
class StepSpec:
    """Settings of a training step, from the plan's levers and the user's options."""

    accumulation: int
    """Number of micro-batches in an effective batch."""
    layerwise: Passes = 0
    """Backward passes of a layerwise step (training/layerwise.py); 0 for a normal step."""
    inputs_on_host: bool = False
    """True if a layerwise step keeps the layers' inputs in host memory until the backward pass."""
    few_sums: bool = False
    """True if gradients of data-parallel copies are summed (psum) in pieces of some MiB, not leaf by leaf."""
    norms: Norms = "global"
    """Gradient norms to report as metrics: of the whole gradient, or also of each layer."""

    @classmethod
    def of(cls, plan: Plan, options: StepOptions) -> StepSpec:
        """Returns the settings of a plan's step."""
        return cls(
            accumulation=plan.accumulation,
            layerwise=plan.lever("layerwise"),
            inputs_on_host=plan.lever("remat") == "offload",
            few_sums=plan.chip == "cpu",
            norms=options.norms,
        )


class Shared(NamedTuple):
    """Results of a step's backward pass that are summed over all examples."""

    gradient: Any
    """Gradient of the mean loss with respect to the trainable weights."""
    loss: LossSum
    """Mean loss, as a total that is already divided by the weight."""
    metrics: Metrics


class OfExamples(NamedTuple):
    """Results of a step's backward pass for each example."""

    row_gradients: Any
    """Gradients with respect to the table rows that the example reads."""
    carry: Any
    """State that the example passes to the next step."""


def make_step(
    task: Task, optimizer: optax.GradientTransformation, spec: StepSpec
) -> Callable[[State, Batch], tuple[State, Report]]:
    """Returns a function from state and effective batch to the next state and the step's metrics.

    Callers should donate the state. If the state has a `loss_scale` and the gradient overflows, the step changes only
    the scale and the step's number. If `spec.layerwise` is set, the step is that of training/layerwise.py.

    Args:
        task: The model and its loss.
        optimizer: The optimizer of `task`.
        spec: Settings of the step.
    """
    rule = in_place(optimizer)
    if spec.layerwise:
        assert spec.accumulation == 1, "summing a gradient over micro-batches needs the whole gradient"
        on_host = spec.inputs_on_host
        return make_layerwise_step(task, rule, passes=spec.layerwise, inputs_on_host=on_host, norms=spec.norms)

    def step(state: State, batch: Batch) -> tuple[State, Report]:
        return _taken(task, rule, spec, state, batch)

    return step


def _taken(task: Task, rule: InPlace, spec: StepSpec, state: State, batch: Batch) -> tuple[State, Report]:
    """Computes one training step. Returns the next state and the metrics."""
    # A PRNG key for each example, and the table rows that each example reads.
    keys = _keys_of(state, batch)
    tables = state["params"].get("tables", {})
    read_rows = dict(task.rows(state["carry"], batch)) if isinstance(task, ReadsTables) else {}
    rows = {name: tables[name][ids] for name, ids in read_rows.items()}

    # Gradient, summed over micro-batches and over all data-parallel copies of the state.
    inputs = {"batch": dict(batch), "keys": keys, "rows": rows}
    whole = {"inputs": inputs, "carry": state["carry"]}
    split = jax.tree.map(lambda x: in_micro_batches(x, spec.accumulation), whole)
    read = {name: state[name] for name in ("params", "loss_scale") if name in state}
    gradient_of = partial(_gradient, task, few_sums=spec.few_sums)
    (gradient, loss, metrics), (row_gradients, carry) = each_copy(gradient_of, read, split)
    finite = jnp.asarray(True)
    if "loss_scale" in state:
        (gradient, row_gradients), finite = loss_scale.unscaled((gradient, row_gradients), state["loss_scale"])

    # Update of weights, optimizer, EMA, carry and model state.
    new_state = _updated(rule, state, gradient)
    new_state["carry"] = jax.tree.map(joined, carry)
    model_state = metrics.pop(STATE, None)
    if model_state is not None:
        new_state["params"][STATE] = _mean_of_groups(model_state, state["params"][STATE])
    report = {**metrics, "loss": loss.total, "weight": loss.weight, **_norms(task, gradient, spec.norms)}
    if "loss_scale" in state:
        new_state = _unless_overflown(new_state, state, finite)
        report |= {"scale": new_state["loss_scale"].scale, "skipped_steps": new_state["loss_scale"].skipped_steps}

    # Tables are updated last: in `_unless_overflown`, old and new tables would be in memory at once.
    if read_rows:
        assert rule.row_rule is not None, "tables need an optimizer with a `row_rule` (optimizers.in_place)"
        gradients = jax.tree.map(joined, row_gradients)
        new_tables = rule.row_rule.after(tables, read_rows, gradients, step=state["step"], taken=finite)
        new_state["params"] = new_state["params"] | {"tables": new_tables}
    return new_state, report


def _keys_of(state: State, batch: Batch) -> jax.Array:
    """Returns one PRNG key for each example of a step's batch."""
    examples = jax.tree.leaves(batch)[0].shape[0]
    key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), state["step"])
    return jax.vmap(lambda example: jax.random.fold_in(key, example))(jnp.arange(examples))


def _updated(rule: InPlace, state: State, gradient: Any) -> State:
    """Returns the state with updated weights, optimizer state, EMA and step number."""
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
    """Returns metrics with the gradient's norm, and with `norms="layers"` also the norms of layers and other parts."""
    report = {"gradient_norm": global_norm(gradient)}
    if norms == "layers":
        stacked = task.stacked if isinstance(task, Stacks) else None
        report |= norms_of_parts(gradient, stacked=stacked)
    return report


def _unless_overflown(new_state: State, state: State, finite: jax.Array) -> State:
    """Returns the new state, or the old one if the gradient overflowed, with an adjusted loss scale.

    Args:
        new_state: State after the update.
        state: State before the update.
        finite: Scalar bool, False if the gradient overflowed.
    """
    kept = {name: state[name] for name in ("params", "optimizer", "ema", "carry") if name in state}
    chosen = loss_scale.chosen(finite, {name: new_state[name] for name in kept}, kept)
    return new_state | chosen | {"loss_scale": loss_scale.adjusted(state["loss_scale"], finite)}


def _gradient(task: Task, state: State, split: Any, *, few_sums: bool = False) -> tuple[Shared, OfExamples]:
    """Computes the gradient of the mean loss over all micro-batches of one copy of the state.

    Args:
        task: The model and its loss.
        state: Entries `params` and, in float16, `loss_scale` of the state.
        split: `inputs` (batch, keys and table rows) and `carry`, each with a leading axis of micro-batches.
        few_sums: Sum gradients over data-parallel copies in pieces of some MiB, not leaf by leaf.

    Returns:
        Sums over all examples, and results of each example with a leading axis of micro-batches.
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

    # Weight of the whole effective batch. It depends on the labels only, so XLA drops this forward pass.
    parts = jax.lax.map(lambda part: sums(trainable, part[1]["rows"], *part)[0].weight, (carry, inputs))
    weight = over_copies(jnp.sum(parts))
    scale = state["loss_scale"].scale if "loss_scale" in state else jnp.float32(1)

    def mean_part(trainable: Any, rows: Any, carry: Any, micro: Any) -> tuple[jax.Array, tuple[Any, dict]]:
        loss, carry, metrics = sums(trainable, rows, carry, micro)
        return scale * (loss.total / weight), (carry, metrics)

    def micro_batch(carry: Any, micro: Any) -> tuple[Any, OfExamples]:
        """Returns gradient, loss and metrics of one micro-batch, and the results of each of its examples."""
        gradients_of = jax.value_and_grad(mean_part, argnums=(0, 1), has_aux=True)
        (loss, (carry, metrics)), (gradient, row_gradients) = gradients_of(trainable, micro["rows"], carry, micro)
        return (like_state(gradient), loss, metrics), OfExamples(row_gradients, carry)

    def shapes(carry: Any, micro: Any) -> Any:
        """Returns values with the shapes of `micro_batch`'s sums, without tracing the backward pass."""
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
    """Loops over micro-batches. Returns the sums over all micro-batches, and the results of each example.

    Args:
        micro_batch: Function from carry and inputs of one micro-batch to its sums and the results of its examples.
        shapes: Function of the same arguments to values with the shapes of the sums.
        carry: Carry of all micro-batches, with a leading axis of micro-batches.
        inputs: Inputs of all micro-batches, with a leading axis of micro-batches.
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
    """Returns nested dictionaries with `change` applied to the entry at `path`."""
    if not path:
        return change(tree)
    return tree | {path[0]: changed_at(path[1:], tree[path[0]], change)}


def _mean_of_groups(sums: LossSum, before: Any) -> Any:
    """Returns the model state (like batch statistics) as the mean over groups of examples.

    Args:
        sums: Sums of the groups' new model states, and the number of groups.
        before: Model state before the step, for the dtypes.
    """

    def mean(total: jax.Array, leaf: jax.Array) -> jax.Array:
        whole = jnp.issubdtype(leaf.dtype, jnp.integer)  # an integer is a count, equal in all groups
        return (total // sums.weight if whole else total / sums.weight).astype(leaf.dtype)

    return jax.tree.map(mean, sums.total, before)


def _float32(tree: Any) -> Any:
    """Converts bfloat16 leaves to float32, so that gradients of bfloat16 weights are summed in float32.

    Args:
        tree: Arrays or shapes.
    """

    def widened(leaf: Any) -> Any:
        if leaf.dtype != jnp.bfloat16:
            return leaf
        return leaf.astype(jnp.float32) if isinstance(leaf, jax.Array) else jax.ShapeDtypeStruct(leaf.shape, "float32")

    return jax.tree.map(widened, tree)


def evaluated(state: Any) -> Any:
    """Returns the parameters for evaluation and sampling, with the EMA of the weights if the state has one."""
    return state["params"] | ({"trainable": state["ema"]} if "ema" in state else {})


def make_evaluate(task: Task) -> Callable[[Any, Batch], dict[str, LossSum]]:
    """Returns a function from parameters and a batch to sums with weights.

    The caller adds the sums of all batches and divides once.
    """

    def evaluate(params: Any, batch: Batch) -> dict[str, LossSum]:
        examples = jax.tree.leaves(batch)[0].shape[0]
        keys = jax.vmap(jax.random.key)(jnp.zeros(examples, jnp.uint32))
        stored, in_parts = fetched(params["trainable"]), parts_of(task)
        params = params | {"trainable": read(learned(stored, in_parts), stored, in_parts)}
        loss, _carry, metrics = task.loss(params, None, batch, keys, train=False)
        return metrics | {"loss": loss}

    return evaluate
