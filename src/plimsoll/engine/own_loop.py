"""Training state and compiled step of a plan, for a training loop in the user's own process.

The step is compiled exactly as planned: the state is donated, and the batch is split over devices and micro-batches.
JAX in the user's process must run on the plan's chip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np

from plimsoll.engine.program import functions_here
from plimsoll.errors import RecipeError
from plimsoll.levers.weight_bits import readable
from plimsoll.planned import Planned
from plimsoll.planner.chips import BACKEND
from plimsoll.recipes.own.functions import BatchForm
from plimsoll.recipes.own.task import require_sound
from plimsoll.recipes.recipe import Recipe
from plimsoll.training.program import Functions, compiled
from plimsoll.types import LossSum


class OwnLoop:
    """Training state and step of a plan, for the user's own loop. A function is compiled when it is first called."""

    def __init__(self, recipe: Recipe, planned: Planned, form: BatchForm, *, platform: str, steps: int) -> None:
        """Checks that JAX runs on the plan's platform. Compiles nothing.

        Args:
            recipe: The recipe. Its `init` and its data are not used.
            planned: The recipe's plan.
            form: Names, shapes and dtypes of a batch.
            platform: Platform of the plan's chip: cpu, cuda or tpu.
            steps: Length of the learning rate schedule in optimizer steps.

        Raises:
            RecipeError: JAX runs on another platform in this process, or with `jax_enable_x64`.
        """
        plan = planned.plan
        if BACKEND[platform] != jax.default_backend():
            raise RecipeError(
                f"this plan is for {plan.chip}, and JAX runs on {jax.default_backend()} in this process: plan for the"
                " chip that is here (leave chip out), or call start and step where that chip is"
            )
        if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
            raise RecipeError(
                "JAX has 64-bit numbers in this process, and the step that was planned has 32-bit ones: leave"
                " jax_enable_x64 off where start and step are called"
            )
        self._recipe = recipe
        self._plan = plan
        self._options = planned.step_options
        self._form = form
        self._steps = steps
        self._is_checked = False

    def start(self, recipe: Recipe, seed: int) -> Any:
        """Returns the initial training state.

        Args:
            recipe: The recipe, whose `init` makes the parameters.
            seed: Seed of the parameters, and of the PRNG keys that the loss function receives.
        """
        init = compiled(self._functions_of(recipe).init(), deterministic=self._plan.deterministic)
        return init(np.uint32(seed % 2**32))

    def step(self, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the next training state and metrics. The old state is donated and cannot be used again.

        Args:
            state: State from `start` or from the previous step.
            batch: Arrays of one effective batch (all micro-batches of a step), in the planned shapes.

        Returns:
            The next state, and metrics: `loss` (mean over the batch), `gradient_norm`, `weight` (divisor of the loss),
            and the loss function's own metrics.

        Raises:
            DataError: The batch is not a pytree of the planned structure and shapes.
            RecipeError: `state` is not a state of this plan, or was donated to an earlier step. Or a check on two
                examples of the first batch shows that the loss function is not a sum over examples.
        """
        named = self._form.checked(batch, self._recipe.effective_batch)
        if not self._is_checked:
            self._check_once(state, named)
        try:
            state, report = self._step(state, named)
        except (TypeError, ValueError, RuntimeError):
            _require_state(state)
            raise
        return state, {name: _mean(value) if isinstance(value, LossSum) else value for name, value in report.items()}

    def params(self, state: Any) -> Any:
        """Returns the parameters of a state in the form that the user's loss function takes."""
        params = _params(state)
        return params["trainable"] if params.keys() == {"trainable"} else params

    @cached_property
    def _step(self) -> Callable[[Any, Any], tuple[Any, Mapping[str, Any]]]:
        functions = self._functions_of(self._recipe)
        lowered = functions.step(self._recipe.spec.batch(self._recipe.effective_batch))[0]
        step = compiled(lowered, deterministic=self._plan.deterministic)
        put = functions.put if self._plan.devices > 1 else jax.device_put
        return lambda state, batch: step(state, put(batch))

    def _functions_of(self, recipe: Recipe) -> Functions:
        return functions_here(recipe, self._plan, self._options, steps=self._steps)

    def _check_once(self, state: Any, batch: Mapping[str, Any]) -> None:
        params = _params(state)
        if self._recipe.effective_batch > 1 and self._plan.devices == 1:
            first = {name: leaf[:2] for name, leaf in batch.items()}
            require_sound(self._recipe.origin, first, params=params)
        self._is_checked = True


def _params(state: Any) -> dict[str, Any]:
    """Returns all parameters of a state, trainable and frozen, in the form that the recipe's loss takes."""
    _require_state(state)
    return state["params"] | {"trainable": readable(state["params"]["trainable"])}


def _require_state(state: Any) -> None:
    """Raises RecipeError if `state` is not a training state, or was already donated to a step."""
    if not isinstance(state, dict) or not {"params", "optimizer", "step"} <= state.keys():
        raise RecipeError(
            f"this is no state of the plan but a {type(state).__name__}: give the state that plan.start(init) or the"
            " previous step has returned. Parameters become a state by plan.start(lambda key: params)"
        )
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)):
        raise RecipeError(
            "an earlier step has taken this state: a step's state is donated, so that two states are never in memory."
            " Go on with the state that the step returned: state, metrics = step(state, batch)"
        )


@jax.jit
def _mean(value: LossSum) -> jax.Array:
    return value.total / value.weight
