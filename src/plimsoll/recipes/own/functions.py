"""A recipe of functions that are given in Python: `plimsoll.plan(loss, params, batch, optimizer=...)`.

The same as `plimsoll.recipe` makes of a file, but that `loss` may be a mean, a batch any pytree of arrays, and `init`
and `data` may come after the plan: it needs the shapes of parameters and of a batch only.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from plimsoll.errors import DataError, RecipeError
from plimsoll.optimizers.settings import TYPICAL_STEPS, Optimizer
from plimsoll.recipes.own.arrays import kept
from plimsoll.recipes.own.recipe import OwnRecipe, class_of
from plimsoll.recipes.own.user_code import as_recipe_error, file_of
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import from_dict

Reduction = Literal["sum", "mean"]
"""What a loss returns: (sum, weight), or the mean over the examples of its batch."""


@dataclass(frozen=True)
class BatchForm:
    """Names, shapes and types of the arrays in a batch, and the pytree that they are in."""

    tree: Any
    """Structure of the pytree."""
    spec: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape of one example and dtype by name, in the order of the tree."""

    def named(self, batch: Any, *, what: str) -> dict[str, Any]:
        """Returns the leaves of a pytree by their names.

        Raises:
            DataError: It is another pytree than the batch that was planned for.
        """
        import jax

        if (tree := jax.tree.structure(batch)) != self.tree:
            raise DataError(f"{what} is {tree}, and the batch that was planned for {self.tree}")
        return dict(zip(self.spec, jax.tree.leaves(batch), strict=True))

    def checked(self, batch: Any, examples: int) -> dict[str, Any]:
        """Returns the leaves of a batch by their names, as 32-bit numbers.

        Raises:
            DataError: It has another shape or type than was planned for.
        """
        import jax
        import numpy as np

        from plimsoll.data.examples import narrow

        named = self.named(batch, what="the batch of this step")
        for name, (shape, dtype) in self.spec.items():
            leaf = named[name]
            if not isinstance(leaf, jax.Array):
                array = np.asarray(leaf)
                leaf = named[name] = array.astype(narrow(array.dtype), copy=False)
            if (leaf.shape, leaf.dtype.name) != ((examples, *shape), dtype):
                raise DataError(
                    f"{name} of the batch of this step is {leaf.dtype.name}{list(leaf.shape)}, and the plan is of"
                    f" {dtype}{[examples, *shape]}: another shape would be compiled anew, with other bytes than were"
                    " planned. Fill the last batch up, leave it out, or plan for this shape"
                )
        return named

    def whole(self, named: Mapping[str, Any]) -> Any:
        """Returns the pytree of these leaves."""
        return self.tree.unflatten([named[name] for name in self.spec])


def form_of(batch: Any) -> tuple[BatchForm, int]:
    """Returns the form of a batch, given as arrays or shapes, and its number of examples.

    Raises:
        DataError: A leaf is no array of numbers, or their first axes disagree.
    """
    import jax
    import numpy as np
    from jax.tree_util import keystr, tree_flatten_with_path

    from plimsoll.data.examples import narrow

    paths, tree = tree_flatten_with_path(batch)
    leaves = {keystr(path, simple=True, separator="/") or "batch": leaf for path, leaf in paths}
    for name, leaf in leaves.items():
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise DataError(
                f"{name} of the batch is a {type(leaf).__name__}: give arrays, or their shapes as jax.ShapeDtypeStruct"
            )
        if not any(jax.numpy.issubdtype(leaf.dtype, kind) for kind in (np.number, np.bool_)):
            raise DataError(f"{name} of the batch is of {leaf.dtype}: give numbers, like tokens instead of text")
    first_axes = {leaf.shape[:1] for leaf in leaves.values()}
    if len(first_axes) != 1 or first_axes & {(), (0,)}:
        words = ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in leaves.items())
        raise DataError(
            f"the leaves of the batch are {words or 'none'}: the first axis of each counts the examples, so it must be"
            " the same number, above 0, in all of them. Put what is no example into the parameters, or into the loss"
        )
    spec = {name: (tuple(leaf.shape[1:]), narrow(np.dtype(leaf.dtype)).name) for name, leaf in leaves.items()}
    [(examples,)] = first_axes
    return BatchForm(tree, spec), examples


@dataclass(frozen=True, kw_only=True)
class Given:
    """A loss, shapes of parameters and of a batch, and an optimizer: what `plimsoll.plan` was given."""

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
        """Returns the recipe; without `init` or `data` it has zeros of their shapes, which a plan cannot tell apart.

        Raises:
            RecipeError: `init` makes other parameters, or a function is refused.
            DataError: The data is no set of examples like those of the batch.
        """
        if init is not None:
            self.require_init(init)
        functions: dict[str, Any] = {"init": init or _like(self.params)}
        functions["loss"] = _sums(self.loss, self.form, self.reduction)

        # Data, and what identifies it: nothing does as soon as one part is known by its own code only.
        functions["data"], identity = _zeros(self), f"like {self.form.spec}"
        if data is not None:
            functions["data"], identity = kept(data, self.form, "data")
        if validation_data is not None:
            functions["validation_data"], other = kept(validation_data, self.form, "validation_data")
            identity = f"{identity} {other}" if identity and other else ""

        cls = class_of(
            FunctionRecipe,
            functions,
            self.optimizer,
            self.supported,
            of_data=identity,
            __module__=getattr(self.loss, "func", self.loss).__module__,  # of what a functools.partial calls
        )
        return cls(**{**self.fields, **fields}).composed()

    @property
    def lacks_length(self) -> bool:
        """True if the optimizer has a schedule over the whole run, and nobody has said how long that is."""
        if not isinstance(self.optimizer, Optimizer) or self.fields.get("steps") is not None:
            return False
        return self.optimizer.schedule(TYPICAL_STEPS) is not None

    def require_init(self, init: Callable[..., Any]) -> None:
        """Raises RecipeError where `init` makes other parameters than those that were planned for."""
        import jax

        if not callable(init):
            raise RecipeError(f"init must be a function of a PRNG key to the parameters, got a {type(init).__name__}")
        file = file_of(sys.modules.get(init.__module__))
        with as_recipe_error("init of your functions failed", file.parent if file else Path.cwd()):
            made = jax.eval_shape(lambda seed: init(jax.random.key(seed)), jax.ShapeDtypeStruct((), "uint32"))
        shapes = shapes_of(made)
        if shapes != self.params:
            raise RecipeError(
                f"init makes the parameters {_in_words(shapes)}, and the plan is of {_in_words(self.params)}: plan for"
                " these"
            )


@dataclass(frozen=True, kw_only=True)
class FunctionRecipe(OwnRecipe):
    """A recipe of functions that `plimsoll.plan` was given."""

    in_no_file = True

    @property
    def called(self) -> str:
        return "your functions"

    @property
    def short_name(self) -> str:
        return self._file.stem if self._file else "functions"


def given(
    loss: Any, params: Any, batch: Any, *, optimizer: Any, reduction: Any, supported: Any = (), **fields: Any
) -> Given:
    """Returns what `plimsoll.plan` was given, as shapes.

    Raises:
        RecipeError: Parameters, optimizer or reduction are none, or missing.
        DataError: The batch is none.
    """
    missing = {"params": params, "batch": batch, "optimizer": optimizer}
    if names := [name for name, value in missing.items() if value is None]:
        raise RecipeError(
            f"plimsoll.plan of a loss needs {', '.join(names)} too: plan(loss, params, batch, optimizer=...), where"
            " params and batch are arrays or their shapes, like jax.eval_shape(init, jax.random.key(0))"
        )
    if reduction not in get_args(Reduction):
        raise RecipeError(f'reduction is "sum" or "mean", got {reduction!r}')
    form, examples = form_of(batch)
    fields = {"batch_size": examples, **fields}
    return Given(
        loss=loss,
        params=shapes_of(params),
        form=form,
        optimizer=optimizer,
        reduction=reduction,
        supported=tuple(sorted(supported)),
        fields=fields,
    )


def shapes_of(params: Any) -> Any:
    """Returns shapes and dtypes of parameters, given as arrays or shapes. 64-bit numbers become 32-bit ones."""
    import jax
    import numpy as np

    from plimsoll.data.examples import narrow

    def shape(leaf: Any) -> Any:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise RecipeError(
                f"a leaf of the parameters is a {type(leaf).__name__}: give arrays or their shapes, like"
                " jax.eval_shape(init, jax.random.key(0)), and leave out of the tree what is no array (Equinox:"
                " eqx.filter(model, eqx.is_inexact_array), and eqx.combine in the loss)"
            )
        return jax.ShapeDtypeStruct(tuple(leaf.shape), narrow(np.dtype(leaf.dtype)))

    return jax.tree.map(shape, params)


def require_sound(request: Mapping[str, Any]) -> dict[str, Any]:
    """Looks at the first two examples of a recipe, in a process of its own: its data must suit its loss.

    Raises:
        RecipeError: The loss is no sum over examples, or not finite.
    """
    recipe = from_dict(request["recipe"])
    recipe.origin.require_sound()
    return {}


def _sums(loss: Callable[..., Any], form: BatchForm, reduction: Reduction) -> Callable[..., Any]:
    """Returns the loss as a recipe has it: of a batch by names, and sums."""

    def sums(params: Any, batch: Any, **options: Any) -> Any:
        import jax

        from plimsoll.recipes.own.task import described

        returned = loss(params, form.whole(batch), **options)
        if reduction == "sum":
            return returned
        examples = jax.tree.leaves(batch)[0].shape[0]
        mean, metrics, *state = returned if isinstance(returned, tuple) and len(returned) in (2, 3) else (returned, {})
        if not isinstance(metrics, dict) or getattr(mean, "shape", None) != ():
            raise RecipeError(
                'with reduction="mean" a loss returns a scalar, or a scalar and a dict of metrics that are means too;'
                f" this one returned {described(returned)}"
            )
        means = {name: (examples * value, examples) for name, value in metrics.items()}
        return examples * mean, examples, means, *state

    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError) as problem:
        raise RecipeError(f"the loss is a {type(loss).__name__} whose arguments are not known: {problem}") from None
    sums.__signature__ = inspect.Signature([each.replace(annotation=each.empty) for each in parameters])  # type: ignore[attr-defined]
    sums.__wrapped__ = loss  # type: ignore[attr-defined]
    return sums


def _like(params: Any) -> Callable[[Any], Any]:
    """Returns an init of zeros."""

    def init(key: Any) -> Any:
        import jax
        import jax.numpy as jnp

        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)

    return init


def _zeros(given: Given) -> Callable[[], Any]:
    """Returns data of as many zeros as a batch has, which take no memory."""
    spec = dict(given.form.spec)

    def data() -> Any:
        import numpy as np

        return {name: np.broadcast_to(np.zeros((), dtype), (2**20, *shape)) for name, (shape, dtype) in spec.items()}

    return data


def _in_words(params: Any) -> str:
    import jax

    return str(jax.tree.map(lambda leaf: f"{leaf.dtype.name}{list(leaf.shape)}", params))
