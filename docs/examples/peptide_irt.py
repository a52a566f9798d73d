"""How long a peptide stays on a chromatography column, from its sequence: a recipe on an HDF5 file.

    python docs/examples/peptide_irt.py peptide_irt_train.csv peptide_irt_val.csv     # writes peptides.h5
    plimsoll train docs/examples/peptide_irt.py --memory 600MiB

Sequences are padded to one length; a small transformer's mean over the letters gives the time.
"""

import csv
import sys

import jax
import jax.numpy as jnp
import optax

import plimsoll

FILE, LETTERS, LENGTH, WIDTH, LAYERS = "peptides.h5", "ACDEFGHIKLMNPQRSTVWY", 32, 64, 2


def convert(*tables):
    """CSV tables of `sequence,irt`, one after the other, to an HDF5 file in chunks of 512 rows."""
    import h5py

    with h5py.File(FILE, "w") as file:
        letters = file.create_dataset("letters", (0, LENGTH), "uint8", maxshape=(None, LENGTH), chunks=(512, LENGTH))
        time = file.create_dataset("irt", (0,), "float32", maxshape=(None,), chunks=(512,))
        for table in tables:
            with open(table) as lines:
                rows = list(csv.DictReader(lines))
            coded = [[1 + LETTERS.index(letter) for letter in row["sequence"][:LENGTH]] for row in rows]
            for dataset in (letters, time):
                dataset.resize(len(dataset) + len(rows), axis=0)
            letters[-len(rows) :] = [code + [0] * (LENGTH - len(code)) for code in coded]
            time[-len(rows) :] = [float(row["irt"]) for row in rows]


def peptides(rows):
    return plimsoll.Hdf5(FILE, {"letters": "letters", "time": "irt"}, rows=rows)


def init(key):
    keys = iter(jax.random.split(key, 3 + 4 * LAYERS))

    def matrix(*shape):
        return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

    return {
        "letter": jax.random.normal(next(keys), (len(LETTERS) + 1, WIDTH)),
        "place": 0.1 * jax.random.normal(next(keys), (LENGTH, WIDTH)),
        "layers": [
            {"qkv": matrix(WIDTH, 3 * WIDTH), "out": matrix(WIDTH, WIDTH)}
            | {"up": matrix(WIDTH, 4 * WIDTH), "down": matrix(4 * WIDTH, WIDTH)}
            for _ in range(LAYERS)
        ],
        "time": 0.1 * matrix(WIDTH, 1),
    }


def predicted(params, letters):
    """iRT in units of 50, about 60: (batch,)."""
    there = letters > 0
    x = params["letter"][letters] + params["place"]
    for layer in params["layers"]:
        heads = (normed(x) @ layer["qkv"]).reshape(*x.shape[:2], 3, 4, WIDTH // 4)
        seen = jax.nn.dot_product_attention(*jnp.moveaxis(heads, 2, 0), mask=there[:, None, None])
        x = x + seen.reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
    return jnp.where(there, (normed(x) @ params["time"])[..., 0], 0).sum(1)


def normed(x):
    return jax.nn.standardize(x)


def loss(params, batch):
    missed = predicted(params, batch["letters"]) - (batch["time"] - 60) / 50
    return jnp.sum(missed**2), missed.size, {"mean_error": (50 * jnp.sum(jnp.abs(missed)), missed.size)}


recipe = plimsoll.recipe(
    init=init,
    loss=loss,
    data=lambda: peptides((None, -6800)),
    validation_data=lambda: peptides((-6800, None)),
    optimizer=lambda steps: optax.adamw(optax.warmup_cosine_decay_schedule(0, 2e-3, steps // 20, steps)),
    batch_size=128,
    steps=1500,
)

if __name__ == "__main__":
    convert(*sys.argv[1:])
