"""A training step that updates each layer during the backward pass, as soon as the layer's gradient is known.

It computes the same numbers as `training.step`, except for the order of the sum in the gradient's norm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from plimsoll.levers.layerwise import layer_gradient
from plimsoll.levers.weight_bits import learned, parts_of, read, readable
from plimsoll.optimizers.in_place import InPlace, Layer, Parts, Trees, without
from plimsoll.optimizers.norm import norms_of_parts, shrinking
from plimsoll.types import Batch, Layered, Norms, Task


def make_layerwise_step(
    task: Task, rule: InPlace, *, passes: int, inputs_on_host: bool = False, norms: Norms = "global"
) -> Callable[[Any, Batch], tuple[Any, dict]]:
    """Returns a step with the signature of `training.step.make_step`'s step.

    Levers that cannot be combined with it were rejected before (levers/records/layerwise.py).

    Args:
        task: The model and its loss, split into layers.
        rule: The update rule of the task's optimizer.
        passes: Backward passes: 1, or 2 if gradients are clipped.
        inputs_on_host: Keep the inputs of layers in host memory until the backward pass.
        norms: Gradient norms to report as metrics: of the whole gradient, or also of each layer.
    """
    parts = rule.parts
    assert isinstance(task, Layered)
    assert parts is not None
    assert passes == (1 if parts.clip_norm is None else 2), "a clip needs the whole gradient's norm first"
    walk = _Walk(task, parts, inputs_on_host, norms)

    def step(state: Any, batch: Batch) -> tuple[Any, dict[str, Array]]:
        assert "loss_scale" not in state, "layers are updated before an overflow of the gradient is seen"
        trees = state["params"]["trainable"], state["optimizer"]
        (weights, kept), report = walk.step(trees, dict(batch), state["step"])
        params = state["params"] | {"trainable": weights}
        average = {"ema": rule.average.after(state["ema"], weights, state["step"])} if rule.average else {}
        return state | average | {"step": state["step"] + 1, "params": params, "optimizer": kept}, report

    return step


class _Squares(NamedTuple):
    """Sums of squares of the layers' gradients."""

    total: Array
    """Scalar, the sum over all layers."""
    of_layers: Array | None
    """Shape (layers), the sum of each layer; None unless norms of single layers are reported."""


@dataclass(frozen=True)
class _Walk:
    """One layerwise step: a forward pass through the layers, and one or two backward passes.

    `trees` is the pair of stored weights and optimizer state in all methods.
    """

    task: Layered
    parts: Parts
    inputs_on_host: bool
    norms: Norms

    def step(self, trees: Trees, batch: Batch, token: Array) -> tuple[Trees, dict[str, Array]]:
        task, stacked = self.task, self.task.stacked
        stored, in_parts = without(trees[0], stacked), parts_of(task)
        outer = learned(stored, in_parts)

        def enter(outer: Any) -> Array:
            return task.enter(read(outer, stored, in_parts), batch)

        def leave(outer: Any, hidden: Array) -> Any:
            return task.leave(read(outer, stored, in_parts), hidden, batch)

        # Forward pass.
        entered, pull_entered = jax.vjp(enter, outer)
        left, inputs = self.forward(trees[0][stacked], entered, batch)
        weight = leave(outer, left)[0].weight  # depends on the labels alone: XLA drops the rest of this call

        def mean(outer: Any, hidden: Array) -> tuple[Array, dict]:
            loss, metrics = leave(outer, hidden)
            return loss.total / weight, metrics

        # Backward pass: updates the layers. A clip needs the norm first: this pass then only sums squares.
        (loss, metrics), (above, cotangent) = jax.value_and_grad(mean, argnums=(0, 1), has_aux=True)(outer, left)
        clip, most = jnp.float32(1), self.parts.clip_norm
        if most is None:
            trees, below, squares = self.update(trees, inputs, batch, cotangent, clip, token)
        else:
            below, squares = self.squares(trees[0][stacked], inputs, batch, cotangent)

        # Gradient of the weights before and after the layers, and norm of the whole gradient.
        gradient = jax.tree.map(jnp.add, above, pull_entered(below)[0])
        norm = jnp.sqrt(squares.total + _squares(gradient))
        if most is not None:
            clip = shrinking(norm, most)
            trees, _, _ = self.update(trees, inputs, batch, cotangent, clip, token)
        trees = self.parts.rest(trees, gradient, stacked, clip)
        report = {**metrics, "loss": loss, "weight": weight, "gradient_norm": norm}
        return trees, report | self.norms_of(squares, gradient)

    def forward(self, blocks: Any, entered: Array, batch: Batch) -> tuple[Array, Array]:
        """Runs the forward pass. Returns the output of the last layer, and the stacked inputs of all layers."""

        def layer(x: Array, numbered: Any) -> tuple[Array, Array]:
            number, weights = numbered
            kept = jax.device_put(x, jax.memory.Space.Host) if self.inputs_on_host else x
            return self.task.block(readable(weights), x, batch, number), kept

        layers = jax.tree.leaves(blocks)[0].shape[0]
        return lax.scan(layer, entered, (jnp.arange(layers), blocks))

    def squares(self, blocks: Any, inputs: Array, batch: Batch, cotangent: Array) -> tuple[Array, _Squares]:
        """Runs a backward pass without updates.

        Returns the gradient with respect to the first layer's input, and the sums of squares.
        """
        layers = inputs.shape[0]

        def layer(n: Array, carry: tuple[Array, _Squares]) -> tuple[Array, _Squares]:
            cotangent, squares = carry
            number = layers - 1 - n
            gradient, cotangent = layer_gradient(self.task, blocks, inputs, number, batch, cotangent)
            return cotangent, self.added(squares, gradient, number)

        return lax.fori_loop(0, layers, layer, (cotangent, self.no_squares(layers)))

    def update(
        self, trees: Trees, inputs: Array, batch: Batch, cotangent: Array, clip: Array, token: Array
    ) -> tuple[Trees, Array, _Squares]:
        """Runs a backward pass that updates each layer.

        Returns the updated trees, the gradient with respect to the first layer's input, and the sums of squares.
        """
        layers, stacked = inputs.shape[0], self.task.stacked

        def layer(n: Array, carry: Any) -> Any:
            trees, cotangent, squares, token = carry
            at = Layer(stacked, layers - 1 - n)
            gradient, cotangent = layer_gradient(self.task, trees[0][stacked], inputs, at.number, batch, cotangent)
            trees, token = self.parts.layer(trees, gradient, at, clip, token)
            return trees, cotangent, self.added(squares, gradient, at.number), token

        begin = trees, cotangent, self.no_squares(layers), token
        trees, cotangent, squares, _ = lax.fori_loop(0, layers, layer, begin)
        return trees, cotangent, squares

    def no_squares(self, layers: int) -> _Squares:
        """Returns sums of squares that are zero, to start from."""
        return _Squares(jnp.float32(0), jnp.zeros(layers) if self.norms == "layers" else None)

    def added(self, squares: _Squares, gradient: Any, number: Array) -> _Squares:
        """Adds the squares of the gradient of the layer with index `number` to the sums."""
        of_layer = _squares(gradient)
        of_layers = squares.of_layers
        if of_layers is not None:
            of_layers = of_layers.at[number].set(of_layer)
        return _Squares(squares.total + of_layer, of_layers)

    def norms_of(self, squares: _Squares, gradient: Any) -> dict[str, Array]:
        """Returns metrics with the gradient norms of layers and other parts, if --log-norms asks for them."""
        if squares.of_layers is None:
            return {}
        norms = jnp.sqrt(squares.of_layers)
        of_layers = {f"gradient_norm/{self.task.stacked}/{number}": norm for number, norm in enumerate(norms)}
        return norms_of_parts(gradient, stacked=None) | of_layers


def _squares(tree: Any) -> Array:
    return sum((jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)), jnp.float32(0))
