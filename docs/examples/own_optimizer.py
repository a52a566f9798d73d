"""An optimizer of one's own on the points of plain_jax.py: LAMB, with warm-up and decays as every optimizer has them.

plimsoll train docs/examples/own_optimizer.py --memory 600MiB
"""

from dataclasses import dataclass
from typing import Annotated

import optax
from plain_jax import init, loss, spirals

import plimsoll
from plimsoll.options import Ge


@dataclass(frozen=True, kw_only=True)
class Lamb(plimsoll.Rates):
    """Adam whose step is a share of each array's norm. You et al. 2020, https://arxiv.org/abs/1904.00962."""

    weight_decay: Annotated[float, Ge(0)] = 0.01
    """Weight decay, multiplied by the learning rate."""

    def rule(self, steps, storage):
        return optax.lamb(self.schedule(steps), weight_decay=self.weight_decay)


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: spirals(4096, seed=0),
    validation_data=lambda: spirals(500, seed=1),
    optimizer=Lamb(learning_rate=3e-2, decay="wsd"),
    batch_size=64,
    steps=300,
)
