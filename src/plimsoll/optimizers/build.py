"""Builds the update rule of AdamW's settings: optax's own, or one whose state is kept in fewer bits."""

from __future__ import annotations

import optax

from plimsoll.optimizers.adamw import AdamW, decayed
from plimsoll.optimizers.adamw8 import adamw8
from plimsoll.optimizers.in_place import InPlace, elementwise
from plimsoll.optimizers.norm import clip_by_norm
from plimsoll.optimizers.streaming import streaming
from plimsoll.types import WHOLE, Storage


def build(settings: AdamW, steps: int, storage: Storage = WHOLE) -> InPlace:
    """Returns the update rule of these settings over `steps` updates, its state and weights kept as `storage` says.

    With 32 bits everywhere it is optax's own AdamW.
    """
    if (storage.optimizer_bits, storage.weight_bits) != (32, 32):
        return adamw8(settings, steps, storage)

    adamw = optax.adamw(
        settings.schedule(steps),
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        mask=decayed,
    )
    if settings.clip_norm is None:
        return streaming(adamw, parts=elementwise(adamw, clip_norm=None))
    clip = clip_by_norm(settings.clip_norm)
    unclipped = optax.chain(optax.identity(), adamw)  # with the state of the clipped one
    return streaming(adamw, first=clip, parts=elementwise(unclipped, clip_norm=settings.clip_norm))
