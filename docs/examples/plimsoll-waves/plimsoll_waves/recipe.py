"""The recipe: a network of one hidden layer. Fields are options, their docstrings the help."""

from dataclasses import dataclass
from pathlib import Path

import plimsoll
from plimsoll.recipes.parts import Uses
from plimsoll.recipes.verbs import Shown, Verb


@dataclass(frozen=True, kw_only=True)
class Waves(plimsoll.OwnRecipe):
    """Reads the frequency of a noisy wave. JAX is imported inside the methods: help and listings need none."""

    name = "waves"
    uses = Uses(
        verbs={"evaluate": Verb(answer="plimsoll_waves.results:evaluate", text="plimsoll_waves.results:text")},
        shown=(Shown(words="what it reads", make="plimsoll_waves.results:shown"),),
    )
    supported = ("optimizer_bits", "weight_bits")

    file: str = ""
    """The .npz file that `plimsoll prepare waves` wrote."""
    width: int = 64
    """Units of the hidden layer."""
    learning_rate: float = 3e-3
    """Peak, when warm-up ends."""
    batch_size: int = 64
    steps: int | None = 300
    """Optimizer steps of the run: its length and its schedule."""

    def __post_init__(self):
        super().__post_init__()
        if self.file:  # a run is continued and evaluated from other folders, too
            object.__setattr__(self, "file", str(Path(self.file).expanduser().absolute()))

    def init(self, key):
        import jax

        from plimsoll_waves.data import SAMPLES

        first, second = jax.random.split(key)
        return {
            "in": jax.random.normal(first, (SAMPLES, self.width)) * SAMPLES**-0.5,
            "out": jax.random.normal(second, (self.width,)) * self.width**-0.5,
        }

    def predicted(self, params, samples):
        """Returns the frequency that the network reads in each wave."""
        import jax

        return jax.nn.gelu(samples @ params["in"]) @ params["out"]

    def loss(self, params, batch):
        """A sum over the examples, and what to divide it by."""
        errors = (self.predicted(params, batch["samples"]) - batch["frequency"]) ** 2
        return errors.sum(), errors.size

    def data(self):
        return self._split()[0]

    def validation_data(self):
        return self._split()[1]

    def _split(self):
        import numpy as np

        if not self.file:
            raise plimsoll.RecipeError("--file is missing: `plimsoll prepare waves --out waves.npz` makes one")
        with np.load(self.file, allow_pickle=False) as arrays:
            waves = {name: arrays[name] for name in ("samples", "frequency")}
        held_out = len(waves["frequency"]) // 10
        return {n: a[held_out:] for n, a in waves.items()}, {n: a[:held_out] for n, a in waves.items()}

    def optimizer(self, steps):
        return plimsoll.AdamW(learning_rate=self.learning_rate, warmup_steps=20)
