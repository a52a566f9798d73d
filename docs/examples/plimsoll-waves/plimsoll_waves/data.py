"""The data set: made by `plimsoll prepare waves`, described by `plimsoll inspect`."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

from plimsoll import DataError

SAMPLES = 64
"""Samples of a wave, over one second."""
ARRAYS = {"samples.npy", "frequency.npy"}


@dataclass(frozen=True, kw_only=True)
class WavesOptions:
    """Options of `plimsoll prepare waves`."""

    count: int = 2000
    """Waves to make; the first tenth is held out."""
    noise: float = 0.1
    """Standard deviation of what is added to each sample."""
    seed: int = 0
    """Of phases, frequencies and noise."""
    out: str
    """The .npz file."""

    def __post_init__(self):
        if self.count < 10:
            raise DataError(f"--count must be 10 or more, got {self.count}")


def make(options: WavesOptions) -> dict:
    """Writes the file, and returns what `prepare --json` prints."""
    import numpy as np

    random = np.random.default_rng(options.seed)
    frequency = random.uniform(1, 4, options.count)
    phase = random.uniform(0, 1, options.count)
    times = np.arange(SAMPLES) / SAMPLES
    samples = np.sin(2 * np.pi * (frequency[:, None] * times + phase[:, None]))
    samples += options.noise * random.standard_normal(samples.shape)
    path = Path(options.out).expanduser()
    with path.open("wb") as file:
        np.savez(file, samples=samples.astype(np.float32), frequency=frequency.astype(np.float32))
    return {"path": str(path), "examples": options.count, "bytes": path.stat().st_size}


def prepared_text(answer: dict) -> str:
    return f"{answer['path']}: {answer['examples']:,} waves, {answer['bytes']:,} bytes"


def is_waves(path: str) -> bool:
    file = Path(path).expanduser()
    return file.is_file() and zipfile.is_zipfile(file) and set(zipfile.ZipFile(file).namelist()) == ARRAYS


def describe(path: str) -> dict:
    import numpy as np

    with np.load(Path(path).expanduser(), allow_pickle=False) as arrays:
        frequency = arrays["frequency"]
    return {"path": path, "examples": len(frequency), "lowest": float(min(frequency)), "highest": float(max(frequency))}


def table(found: dict) -> str:
    return f"{found['path']}: {found['examples']:,} waves of {found['lowest']:.1f} to {found['highest']:.1f} Hz"
