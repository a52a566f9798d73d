"""An optimizer of one's own for the model and data of `code`: LAMB, with the warm-up and decays of all optimizers.

plimsoll train docs/examples/own_optimizer.py --memory 600MiB --weight-decay 0.1 --decay linear
"""

from dataclasses import dataclass

import optax

import plimsoll
from plimsoll.optimizers.settings import decayed
from plimsoll.options import NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class Lamb(plimsoll.Rates):
    """Adam whose step is a share of each array's norm. You et al. 2020, https://arxiv.org/abs/1904.00962."""

    weight_decay: NonNegativeFloat = 0.01
    """Weight decay, multiplied by the learning rate; not of norms and biases."""

    def rule(self, steps, storage):
        return optax.lamb(self.schedule(steps), weight_decay=self.weight_decay, mask=decayed)


recipe = plimsoll.preset("code").replace(optimizer=Lamb(learning_rate=1e-2, decay="wsd"))
