"""A transformer station's next day from its last four: a recipe on an HDF5 file of windows.

    python docs/examples/etth1.py ETTh1.csv              # writes etth1.h5, and prints what repeating a day misses by
    plimsoll train docs/examples/etth1.py --memory 600MiB

Rows are in the order of time, so parts of the file are parts of the time: the first year is learned, the months after
it are evaluated on. A small network corrects the last day's values.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plimsoll

FILE, PAST, FUTURE, WIDTH = "etth1.h5", 96, 24, 128
YEAR, MONTHS = 8640, 2880


def convert(table):
    """Hours of seven columns, in units of the first year's spread, to windows that begin an hour apart."""
    import h5py

    hours = np.loadtxt(table, delimiter=",", skiprows=1, usecols=range(1, 8), dtype=np.float32)
    hours = (hours - hours[:YEAR].mean(0)) / hours[:YEAR].std(0)
    windows = np.lib.stride_tricks.sliding_window_view(hours, PAST + FUTURE, axis=0).transpose(0, 2, 1)
    with h5py.File(FILE, "w") as file:
        for name, part in {"past": windows[:, :PAST], "future": windows[:, PAST:]}.items():
            file.create_dataset(name, data=part, chunks=(512, *part.shape[1:]), compression="lzf")
    held_out = windows[YEAR : YEAR + MONTHS]
    again = np.square(held_out[:, PAST - FUTURE : PAST] - held_out[:, PAST:]).mean()
    print(f"{FILE}: {len(windows):,} windows. The last day again: mean squared error {again:.4f}")


def windows(begin, end):
    return plimsoll.Hdf5(FILE, {"past": "past", "future": "future"}, rows=(begin, end))


def init(key):
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (PAST * 7, WIDTH)) * (PAST * 7) ** -0.5,
        "out": jax.random.normal(second, (WIDTH, FUTURE * 7)) * (0.1 * WIDTH**-0.5),
        "days": jnp.zeros((PAST, FUTURE)),
    }


def loss(params, batch):
    past = batch["past"] - batch["past"][:, -1:]
    hidden = jax.nn.gelu(past.reshape(len(past), -1) @ params["in"])
    guessed = jnp.einsum("bpc,pf->bfc", past, params["days"]) + (hidden @ params["out"]).reshape(-1, FUTURE, 7)
    missed = guessed + batch["past"][:, -1:] - batch["future"]
    return jnp.sum(missed**2) / (FUTURE * 7), len(past)


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: windows(None, YEAR - PAST - FUTURE),
    validation_data=lambda: windows(YEAR, YEAR + MONTHS),
    optimizer=lambda steps: optax.adamw(optax.cosine_decay_schedule(1e-3, steps), weight_decay=0.1),
    batch_size=128,
    steps=400,
)

if __name__ == "__main__":
    convert(sys.argv[1])
