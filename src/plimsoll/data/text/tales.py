"""Tales for the demo, made of the words and plots in tales.toml: text in plain sentences that needs no download."""

import os
import random
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from plimsoll.processes.cache import cache_folder

COUNT = 12_000
"""Tales in the file: 5.4 MiB, no two of them alike."""
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}
"""Subject, object and possessive."""


@cache
def grammar() -> dict[str, Any]:
    """Returns the words and plots."""
    return tomllib.loads(Path(__file__).with_name("tales.toml").read_text("utf-8"))


def tale(number: int) -> str:
    """Returns the tale of a number, always the same one, on one line."""
    dice = random.Random(number)
    source = grammar()
    slots = {name: dice.choice(words) for name, words in source["words"].items()}
    slots["kind"], slots["other"] = dice.sample(source["kinds"], 2)

    # The two of whom it tells.
    gender = dice.choice(["she", "he"])
    slots["he"], slots["him"], slots["his"] = PRONOUNS[gender]
    slots["hero"] = dice.choice(source[gender])
    others = [name for name in (*source["she"], *source["he"]) if name != slots["hero"]]
    slots["friend"] = dice.choice(others)

    beats = dice.choice(source["plots"])["beats"]
    sentences = [dice.choice(beat).format(**slots) for beat in beats]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def tales_file() -> Path:
    """Returns a file of the cache with all tales, a blank line between two; it is made where it is missing."""
    path = cache_folder() / "tales.txt"
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write("\n\n".join(map(tale, range(COUNT))))
        os.replace(file.name, path)
    return path
