"""Generated tales for the demo, from the words and plots in tales.toml: simple English text without a download."""

import os
import random
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.processes.cache import cache_folder

COUNT = 12_000
"""Number of tales in the file (5.4 MiB), all different."""
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}
"""Subject, object and possessive form of each pronoun."""


@cache
def grammar() -> dict[str, Any]:
    """Returns the words and plots of tales.toml."""
    return tomllib.loads(Path(__file__).with_name("tales.toml").read_text("utf-8"))


def tale(number: int) -> str:
    """Returns a tale on one line. The same number gives the same tale."""
    dice = random.Random(number)
    source = grammar()
    slots = {name: dice.choice(words) for name, words in source["words"].items()}
    slots["kind"], slots["other"] = dice.sample(source["kinds"], 2)

    # Choose the hero with pronouns, and a friend of another name.
    gender = dice.choice(["she", "he"])
    slots["he"], slots["him"], slots["his"] = PRONOUNS[gender]
    slots["hero"] = dice.choice(source[gender])
    others = [name for name in (*source["she"], *source["he"]) if name != slots["hero"]]
    slots["friend"] = dice.choice(others)

    beats = dice.choice(source["plots"])["beats"]
    sentences = [dice.choice(beat).format(**slots) for beat in beats]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def tales_file() -> Path:
    """Returns the cache's file with all tales, separated by blank lines. Writes the file if it is missing.

    Raises:
        DataError: The cache's disk is full, or its folder is not writable.
    """
    path = cache_folder() / "tales.txt"
    if path.exists():
        return path
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder, path.name)
            file.write_text("\n\n".join(map(tale, range(COUNT))), "utf-8")
            os.replace(file, path)
    except OSError as problem:
        raise DataError(
            f"the tales cannot be written to {path}: {problem.strerror}. They take 6 MiB: make room, or name another"
            " folder with PLIMSOLL_CACHE"
        ) from None
    return path
