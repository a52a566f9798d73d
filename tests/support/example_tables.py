"""Tables like those that the examples on HDF5 are about, drawn at random."""

import numpy as np


def peptides(random):
    """Heavier peptides stay longer, as in the published tables."""
    drawn = ["".join(random.choice([*"ACDEFGHIKLMNPQRSTVWY"], size=random.integers(7, 30))) for _ in range(7200)]
    return ["sequence,irt"] + [f"{letters},{3.0 * len(letters)}" for letters in drawn]


def stations(random):
    """Days that repeat, and noise; an hour a line."""
    hours = np.sin(np.arange(11_800)[:, None] * 2 * np.pi / 24 + np.arange(7)) + random.normal(size=(11_800, 7)) * 0.1
    return ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"] + ["a day," + ",".join(map("{:.4f}".format, row)) for row in hours]


TABLES = {"peptide_irt": peptides, "etth1": stations}


def written(name, folder):
    """The table of an example, as a CSV file in `folder`."""
    table = folder / f"{name}.csv"
    table.write_text("\n".join(TABLES[name](np.random.default_rng(0))))
    return table
