"""Recipes of Python functions: `plimsoll.plan(loss, params, batch, optimizer=...)`.

Unlike in `plimsoll.recipe`, `loss` may be a mean, and a batch any pytree of arrays. `init` and `data` may come after
the plan, which needs only the shapes of parameters and of a batch. Importing this module imports JAX.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_map_with_path

from plimsoll.data.examples import narrow, narrowed
from plimsoll.errors import DataError, RecipeError
from plimsoll.planned import plain_compute
from plimsoll.recipes.own.arrays import kept
from plimsoll.recipes.own.recipe import class_of
from plimsoll.recipes.own.task import NO_ARRAY, described, in_words
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import from_dict

Reduction = Literal["sum", "mean"]
"""Result of a loss: the pair (sum, weight), or the mean over the examples of its batch."""


@dataclass(frozen=True)
class BatchForm:
    """Names, shapes and types of the arrays in a batch, and the structure of its pytree."""

    tree: Any
    """Structure of the pytree."""
    spec: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape (of one example) and dtype of each array, by name, in the order of the pytree's leaves."""

    def named(self, batch: Any) -> dict[str, Any]:
        """Returns the leaves of a pytree with this structure, by their names."""
        return dict(zip(self.spec, jax.tree.leaves(batch), strict=True))

    def checked(self, batch: Any, examples: int) -> dict[str, Any]:
        """Returns the leaves of a batch by their names, with 64-bit numbers as 32-bit ones.

        Raises:
            DataError: The batch differs from the planned one in its pytree, shapes or types.
        """
        tree = jax.tree.structure(batch)
        if tree != self.tree:
            raise DataError(f"the batch of this step is {tree}, and the batch that was planned for {self.tree}")
        arrays = {}
        for name, leaf in self.named(batch).items():
            array = leaf if isinstance(leaf, jax.Array) else narrowed(leaf, f"{name} of the batch of this step")
            shape, dtype = self.spec[name]
            if (array.shape, array.dtype.name) != ((examples, *shape), dtype):
                raise DataError(
                    f"{name} of the batch of this step is {array.dtype.name}{list(array.shape)}, and the plan is of"
                    f" {dtype}{[examples, *shape]}: another shape would need another compiled step, with other"
                    " bytes. Fill the last batch up, leave it out, or plan for this shape"
                )
            arrays[name] = array
        return arrays

    def whole(self, named: Mapping[str, Any]) -> Any:
        """Returns the pytree of a batch with these leaves, given by name."""
        return self.tree.unflatten([named[name] for name in self.spec])


def form_of(batch: Any) -> tuple[BatchForm, int]:
    """Returns the form of a batch, given as arrays or shapes, and its number of examples.

    Raises:
        RecipeError: A leaf is no array of numbers.
        DataError: The first axes of the leaves differ in size.
    """
    paths, tree = tree_flatten_with_path(shapes_of(batch, "batch"))
    leaves = {keystr(path, simple=True, separator="/") or "batch": leaf for path, leaf in paths}
    first_axes = {leaf.shape[:1] for leaf in leaves.values()}
    if len(first_axes) != 1 or first_axes & {(), (0,)}:
        words = ", ".join(f"{name} {leaf.shape}" for name, leaf in leaves.items())
        raise DataError(
            f"the leaves of the batch are {words or 'none'}: the first axis of each counts the examples, so it must be"
            " the same number, above 0, in all of them. Put other arrays into the parameters, or into the loss"
        )
    spec = {name: (leaf.shape[1:], leaf.dtype.name) for name, leaf in leaves.items()}
    [(examples,)] = first_axes
    return BatchForm(tree, spec), examples


def shapes_of(tree: Any, what: str) -> Any:
    """Returns shapes and dtypes of a pytree of arrays or shapes. 64-bit numbers become 32-bit ones.

    Args:
        tree: The pytree.
        what: Name of the tree, for error messages.

    Raises:
        RecipeError: A leaf is no array of numbers.
    """

    def shape(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        dtype = getattr(leaf, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype.kind in "OSU":
            name = keystr(path, simple=True, separator="/") or "the top"
            raise RecipeError(
                f"{name} of the {what} is {described(leaf)}: give arrays of numbers, or their"
                f" shapes, like jax.eval_shape(init, jax.random.key(0)), and {NO_ARRAY}"
            )
        return jax.ShapeDtypeStruct(leaf.shape, narrow(dtype))

    return tree_map_with_path(shape, tree)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Arguments of `plimsoll.plan`: a loss, shapes of parameters and of a batch, and an optimizer."""

    loss: Callable[..., Any]
    params: Any
    """Shapes of the parameters."""
    form: BatchForm
    optimizer: Any
    reduction: Reduction = "sum"
    supported: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe: batch_size, steps, seed, ..."""

    def recipe(
        self, init: Callable[..., Any] | None = None, data: Any = None, validation_data: Any = None, **fields: Any
    ) -> Recipe:
        """Returns the recipe. Zeros replace a missing `init` or `data`: a plan depends only on the shapes.

        Raises:
            RecipeError: `init` makes parameters of other shapes or types than planned, or a function is invalid.
            DataError: An example of the data has other arrays than one of the planned batch.
        """
        functions: dict[str, Any] = {"loss": self.loss, "init": init or self._zeros, "data": self._examples}

        # `identity` is a hash of the data; empty if training or validation data is known only by its code.
        identity = f"like {self.form.spec}"
        if data is not None:
            functions["data"], identity = kept(data, self.form, "data")
        if validation_data is not None:
            functions["validation_data"], other = kept(validation_data, self.form, "validation_data")
            identity = f"{identity} {other}" if identity and other else ""

        cls = class_of(
            functions,
            self.optimizer,
            self.supported,
            called="your functions",
            in_no_file=True,
            batch_form=self.form,
            loss_reduction=self.reduction,
            of_data=identity,
            __module__=getattr(self.loss, "func", self.loss).__module__,  # for a functools.partial, its function's
        )
        recipe = cls(**{**self.fields, **fields}).composed()
        if init is not None:
            made = _parameters_of(recipe)
            planned = _parameters_of(self.recipe())
            if made != planned:
                raise RecipeError(f"init makes the parameters {made}, and the plan is of {planned}: plan for these")
        return recipe

    def _zeros(self, key: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, self.params)

    def _examples(self) -> Any:
        """Returns 2**20 examples of zeros: broadcast views, which take no memory."""
        spec = self.form.spec.items()
        return {name: np.broadcast_to(np.zeros((), dtype), (2**20, *shape)) for name, (shape, dtype) in spec}


def given(
    loss: Any, params: Any, batch: Any, *, optimizer: Any, reduction: Any, supported: Any = (), **fields: Any
) -> Given:
    """Returns the arguments of `plimsoll.plan`, with shapes in place of arrays.

    Raises:
        RecipeError: Parameters, batch or optimizer are missing, or an argument is invalid.
        DataError: The arrays of the batch have different numbers of examples.
    """
    needed = {"params": params, "batch": batch, "optimizer": optimizer}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise RecipeError(
            f"plimsoll.plan of a loss needs {', '.join(missing)} too: plan(loss, params, batch, optimizer=...), where"
            " params and batch are arrays or their shapes, like jax.eval_shape(init, jax.random.key(0))"
        )
    if reduction not in get_args(Reduction):
        raise RecipeError(f'reduction is "sum" or "mean", got {reduction!r}')
    form, examples = form_of(batch)
    return Given(
        loss=loss,
        params=shapes_of(params, "parameters"),
        form=form,
        optimizer=optimizer,
        reduction=reduction,
        supported=tuple(sorted(supported)),
        fields={"batch_size": examples, **fields},
    )


def _parameters_of(recipe: Recipe) -> str:
    """Returns the types and shapes of a recipe's parameters."""
    task = recipe.task(plain_compute())
    return in_words(jax.eval_shape(lambda: task.init(jax.random.key(0))))


def require_sound(request: Mapping[str, Any]) -> dict[str, Any]:
    """Checks a recipe's loss on its first two examples. It runs in a process of its own.

    Raises:
        RecipeError: The loss is no sum over examples, or not finite.
    """
    recipe = from_dict(request["recipe"])
    recipe.origin.require_sound()
    return {}
