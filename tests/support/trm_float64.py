"""Computes the Tiny Recursive Model's steps in float64, by our code with `jnp.float32` replaced, and writes a sample.

    PYTHONPATH=src python tests/support/trm_float64.py ../shared tests/recipes/puzzles/golden [VARIANT ...]

A process of its own, because every module that it imports gets the other type. Of each array at most
`trm_golden.SAMPLE` numbers are written, in float32: that rounds them by 6e-8, and tests compare within 1e-5.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64  # before our modules are imported, some of which take it as a default

from trm_golden import VARIANTS, Golden, sampled, walked  # noqa: E402


def write(shared: Path, folder: Path, variant: str) -> None:
    golden = Golden(shared, variant)
    kept = {"digest": np.array(golden.digest)}
    for number, step in enumerate(walked(golden, np.float64)):
        kept[f"{number}/loss"] = np.asarray(step.loss.total)
        assert {array.dtype for array in step.arrays.values()} == {np.dtype(np.float64)}
        kept |= {f"{number}/{name}": sampled(array).astype(np.float32) for name, array in step.arrays.items()}
    np.savez_compressed(folder / golden.path.name, allow_pickle=False, **kept)


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:3]]
    for variant in sys.argv[3:] or VARIANTS:
        write(*given, variant)
