"""Settings of an update rule: the options of an optimizer, and its learning rate over a run.

    warm-up        a straight line from 0, or from 1/n of the peak, up to the peak
    cosine         half a cosine down to `final_fraction` of the peak, at the last step
    linear         a straight line down to the same rate
    wsd            constant, then a straight line in the last `decay_fraction` of the run ("warm-up, stable, decay", Hu
                   et al. 2024, https://arxiv.org/abs/2404.06395; a fifth of the run reaches the loss of a cosine,
                   Haegele et al. 2024, https://arxiv.org/abs/2405.18392)
    constant       the peak until the end

Recipes hold these settings, so importing this file imports neither JAX nor optax.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from plimsoll.options import Fraction, Interval, NonNegativeFloat, NonNegativeInt, Part, PositiveFloat, Share
from plimsoll.types import NORMS_AND_BIASES, WHOLE, Storage

if TYPE_CHECKING:
    import optax

Decay = Literal["cosine", "linear", "wsd", "constant"]

EMBEDDINGS = frozenset({"embedding", "embeddings", "embed", "wte", "wpe", "head", "lm_head", "output_head"})
"""Words in the path of leaves with a row or column for each token. Their moments depend on how frequent a token is."""

TYPICAL_STEPS = 10_000
"""Assumed number of steps of a run whose length is not known yet, to ask an optimizer which levers it supports."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(Part):
    """Settings of an update rule. A subclass must define `rule`; its fields are the options.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Sgd(plimsoll.Optimizer):
        ...     learning_rate: float = 0.1
        ...     def rule(self, steps, storage): return optax.sgd(self.learning_rate)
        >>> Sgd(learning_rate=0.5).learning_rate
        0.5
    """

    group = "optimizer"
    levers: ClassVar[tuple[str, ...]] = ()
    """Levers (memory-saving options) that the rule supports, from `optimizer_bits`, `weight_bits`, `offload` and
    `layerwise`."""

    ema_decay: Share = 0.0
    """Decay per step of an exponential moving average (EMA) of the weights, like 0.999. If set, evaluation and sampling
    use the EMA weights. 0 disables it."""

    @property
    def needs_norm(self) -> bool:
        """Whether the norm of the whole gradient is needed before the first update, as for clipping."""
        return False

    @abstractmethod
    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        """Returns the update rule as an optax transformation.

        Args:
            steps: Optimizer steps of the whole run, for the learning-rate schedule.
            storage: Bits per stored number of weights and optimizer state. All are 32 unless `levers` allows less.
        """

    def schedule(self, steps: int) -> Callable[[Any], Any] | None:
        """Returns the learning-rate schedule: a function of the step number, counted from 0; None if unknown.

        Args:
            steps: Optimizer steps of the whole run.
        """
        return None

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        """Returns True if runs of `steps` and of `longer` steps have the same first `taken` learning rates.

        Then a run of `steps` can continue to `longer` after `taken` steps as if it had been planned that long. Returns
        False if unknown.

        Args:
            steps: Optimizer steps of the run.
            longer: Optimizer steps of the extended run.
            taken: Optimizer steps that the run has taken so far.
        """
        return steps == longer


class Corners(NamedTuple):
    """Steps at which the learning rate changes its course, counted from 0."""

    peak: int
    """First step after the warm-up, with the peak rate."""
    fall: int
    """Last step with the peak rate."""
    end: int
    """Step with the final rate."""


@dataclass(frozen=True, kw_only=True)
class Rates(Optimizer):
    """Settings of an update rule whose learning rate has a warm-up and a decay. `rule` gets the rate from `schedule`.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Sgd(plimsoll.Rates):
        ...     def rule(self, steps, storage): return optax.sgd(self.schedule(steps))
        >>> Sgd(learning_rate=0.5, decay="linear").same_beginning(1_000, 2_000, taken=101)
        True
    """

    rises_from_zero: ClassVar[bool] = True
    """If True, the first step has rate 0, and a warm-up of at least the run's length is cut to a tenth of the run.
    Otherwise step 0 of n warm-up steps has 1/n of the peak, and the rate is always float32, as published for Tiny
    Recursive Models."""

    learning_rate: PositiveFloat = 5e-4
    """Peak learning rate, reached at the end of warm-up."""
    warmup_steps: NonNegativeInt | None = None
    """Optimizer steps over which the learning rate rises to its peak. By default --default-warmup-steps, and at most
    --warmup-fraction of the run."""
    default_warmup_steps: NonNegativeInt | None = 100
    """Optimizer steps of the warm-up in a long run, if --warmup-steps is not given. Without it, the warm-up is
    --warmup-fraction of any run."""
    warmup_fraction: Share = 0.1
    """Largest share of the run that is warm-up, if --warmup-steps is not given."""
    decay: Decay = "cosine"
    """Course of the learning rate after warm-up: down to --final-fraction by half a cosine or a straight line (linear),
    at its peak until --decay-fraction of the run is left and then by a straight line (wsd), or at its peak until the
    end (constant)."""
    decay_fraction: Annotated[float, Interval(gt=0, le=1)] = 0.2
    """Share of the run in which the learning rate falls, with --decay wsd."""
    final_fraction: Fraction = 0.1
    """Learning rate at the end of the run, as a fraction of its peak."""

    def warmup(self, steps: int) -> int:
        """Returns the number of warm-up steps in a run of `steps` steps."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        share = self.warmup_fraction * steps
        if self.default_warmup_steps is None:
            return round(share)
        return min(self.default_warmup_steps, max(1, int(share)))

    def corners(self, steps: int) -> Corners:
        """Returns the steps at which the learning rate of a run of `steps` changes its course."""
        warmup = self.warmup(steps)
        if self.rises_from_zero:
            peak = max(1, steps // 10) if warmup >= steps else warmup
            end = max(steps, peak + 1)
        else:
            peak = max(1, warmup) - 1
            end = max(steps - 1, peak + 1)

        # In a run that is all warm-up, `end - falling` may be before the peak.
        falling = max(1, round(self.decay_fraction * steps))
        fall = max(peak, end - falling) if self.decay == "wsd" else peak
        return Corners(peak, fall, end)

    def schedule(self, steps: int) -> optax.Schedule:
        """Returns the learning-rate schedule, an optax schedule: a function from the step number, counted from 0.

        It rises to `learning_rate` within the warm-up, and follows `decay` to `final_fraction` of it at the last step.

        Args:
            steps: Optimizer steps of the whole run.
        """
        return self.curve(self.learning_rate, steps)

    def curve(self, peak: float, steps: int) -> optax.Schedule:
        """Returns the schedule of a run of `steps` with another `peak`."""
        import jax.numpy as jnp
        import optax

        # The rate rises to the peak, and stays level until it falls.
        corners = self.corners(steps)
        first = 0.0 if self.rises_from_zero else peak / (corners.peak + 1)
        rise = optax.linear_schedule(first if corners.peak else peak, peak, corners.peak)
        level = optax.constant_schedule(peak)

        length = corners.end - corners.fall
        if self.decay == "constant":
            fall = level
        elif self.decay == "cosine":
            fall = optax.cosine_decay_schedule(peak, length, alpha=self.final_fraction)
        else:
            fall = optax.linear_schedule(peak, self.final_fraction * peak, length)

        curve = optax.join_schedules([rise, level, fall], [corners.peak, corners.fall])
        if self.rises_from_zero:
            return curve
        return lambda count: jnp.asarray(curve(jnp.asarray(count, jnp.float32)), jnp.float32)

    def same_beginning(self, steps: int, longer: int, *, taken: int) -> bool:
        """Returns True if runs of `steps` and of `longer` steps have the same first `taken` learning rates.

        Rates are equal during a warm-up of equal length; with `decay="wsd"` until the rate of the shorter run begins to
        fall; and always without a decay.
        """
        if steps == longer:
            return True
        corners = self.corners(steps)
        if corners.peak != self.corners(longer).peak:
            return False
        never_falls = self.decay == "constant" or self.final_fraction == 1
        return never_falls or taken <= corners.fall + 1


@dataclass(frozen=True, kw_only=True)
class Clipped(Rates):
    """Settings of an elementwise update rule that follows a clip of the gradient (`streaming.clipped`)."""

    clip_norm: NonNegativeFloat | None = 1.0
    """Largest global norm of a step's gradient; larger gradients are scaled down to it. 0 for no clipping."""

    @property
    def needs_norm(self) -> bool:
        return bool(self.clip_norm)


def decayed(params: Any) -> Any:
    """Returns a tree of booleans: True for leaves with weight decay, which are all but norms and biases."""
    import jax

    return jax.tree_util.tree_map_with_path(lambda path, _: NORMS_AND_BIASES.isdisjoint(words_of(path)), params)


def words_of(path: tuple) -> set[str]:
    """Returns the names and numbers in the path of a leaf."""
    from jax.tree_util import keystr

    return {keystr((entry,), simple=True) for entry in path}
