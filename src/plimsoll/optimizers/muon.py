"""Muon: matrices move by their orthogonalised momentum, other weights by AdamW. Jordan 2024.

    update = rate (0.2 sqrt(max(in, out)) orthogonal(momentum) + decay weight)

https://kellerjordan.github.io/posts/muon. A Newton-Schulz iteration of five steps takes the singular values of the
momentum to about one. The factor is that of Liu et al. 2025, https://arxiv.org/abs/2502.16982: an update has the root
mean square of AdamW's, so both kinds of weights share one learning rate, and AdamW's is a good first guess.

State: 4 bytes for each weight of a matrix, 8 for the others. Price: fifteen matrix products for each matrix and step,
whatever the batch, each with temporaries as large as a stack of layers' matrices. It needs whole matrices, so it
supports no lever that updates a piece at a time. The rule is optax's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.optimizers.settings import EMBEDDINGS, Rates, decayed, words_of
from plimsoll.options import NonNegativeFloat, PositiveFloat, Share
from plimsoll.types import NORMS_AND_BIASES, WHOLE, Storage

if TYPE_CHECKING:
    import optax

LIKE_ADAMW = 0.2
"""Root mean square of an update divided by the learning rate, typical of AdamW (Liu et al. 2025, section 2.2)."""


@dataclass(frozen=True, kw_only=True)
class Muon(Rates):
    """Settings of Muon for matrices, and of AdamW for embeddings, output layer, norms and biases.

    The last two axes of an array are a matrix, earlier ones count layers. Updates are as large as AdamW's, so
    AdamW's learning rate is a good first guess. Source: https://kellerjordan.github.io/posts/muon.

    Example:
        >>> plimsoll.Muon(learning_rate=3e-3, decay="wsd").momentum
        0.95
    """

    name = "muon"

    learning_rate: PositiveFloat = 1e-3
    momentum: Share = 0.95
    """Decay rate of the momentum of matrices."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay, multiplied by the learning rate; applied to matrices and embeddings, not to norms and biases."""
    beta1: Share = 0.9
    """AdamW's decay rate of the first moment."""
    beta2: Share = 0.999
    """AdamW's decay rate of the second moment."""

    def rule(self, steps: int, storage: Storage = WHOLE) -> optax.GradientTransformation:
        import optax
        from optax.contrib import muon

        # Weight decay is added at the end, because optax's muon would also decay norms and biases.
        rate = self.schedule(steps)
        unscaled = muon(
            1.0,
            beta=self.momentum,
            adam_b1=self.beta1,
            adam_b2=self.beta2,
            muon_weight_dimension_numbers=matrices,
            consistent_rms=LIKE_ADAMW,
        )
        return optax.chain(
            unscaled,
            optax.add_decayed_weights(-self.weight_decay, mask=decayed),
            optax.scale_by_schedule(rate),
        )


def matrices(params: Any) -> Any:
    """Returns the axes of every matrix that Muon updates; None for leaves that AdamW updates."""
    import jax
    from optax.contrib import MuonDimensionNumbers

    def axes(path: tuple, leaf: Any) -> MuonDimensionNumbers | None:
        is_other = words_of(path) & (NORMS_AND_BIASES | EMBEDDINGS)
        if leaf.ndim < 2 or is_other:
            return None
        return MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

    return jax.tree_util.tree_map_with_path(axes, params)
