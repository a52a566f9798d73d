"""Small files in the layout of `prepare control`, written without simulating anything."""

import h5py
import numpy as np

FAMILIES = ("Cart", "Pendulum", "Tank")
WINDOW, FEATURES, OUTPUTS = 8, 19, 6


def write_control(path, rows=600, *, chunk=64, train_rows=None, seed=0, window=WINDOW, bad=(), **changes):
    """`bad`: rows with a NaN. `changes` replace datasets, or leave them out where they are None."""
    random = np.random.default_rng(seed)
    family = random.integers(0, len(FAMILIES), rows)
    inputs = random.standard_normal((rows, window, FEATURES)).astype(np.float32)
    inputs[:, 0, 0] = np.arange(rows)  # says which row it is
    inputs[list(bad), -1, 3] = np.nan
    masks = (np.arange(OUTPUTS) < (family + 1)[:, None]).astype(np.float32)
    columns = {
        "input_sequences": inputs,
        "controls": masks * inputs[:, -1, :OUTPUTS] * 0.1,
        "control_masks": masks,
        "system_ids": np.array(FAMILIES, "S50")[family],
        "trajectory": np.arange(rows) // 4,
        "variant": (np.arange(rows) // 100).astype(np.int32),
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            if values is not None:
                file.create_dataset(
                    name, data=values, chunks=(min(chunk, len(values)), *values.shape[1:]), compression="lzf"
                )
        file.attrs["train_rows"] = rows * 5 // 6 if train_rows is None else train_rows
        for row, name in enumerate(FAMILIES):
            file[f"normalization/{name}/control_std"] = np.full(row + 1, 0.1, np.float32)
    return path


def places(batch):
    """Which rows of the file a batch holds."""
    return batch["inputs"][:, 0, 0].astype(int)
