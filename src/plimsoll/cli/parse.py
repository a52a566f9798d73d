"""From typed words to a dataclass: tyro does the parsing, its errors become one paragraph.

Counts may be typed as 124M; the names that users of the published guides know are kept as aliases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from plimsoll.errors import RecipeError
from plimsoll.recipes.base import Recipe
from plimsoll.units import parse_count

T = TypeVar("T")

ALIASES: dict[str, list[str]] = {
    "--use-mixed-precision": ["--numerics", "mixed"],
    "--no-mixed-precision": ["--numerics", "exact"],
    "--no-streaming": ["--no-use-streaming"],
    "--output-dir": ["--run"],
}
REFUSED = {
    "--use-8bit-optimizer": "8-bit optimizer state is not in this version: leave the flag out. The ledger counts"
    " 8 bytes of AdamW state per parameter",
}


def parse(options: type[T], arguments: list[str], *, program: str, recipe: Recipe | None = None) -> T:
    """An `options`, with its `recipe` field filled from the recipe's own options, where there is one."""
    import tyro

    default = {} if recipe is None else {"default": options(recipe=recipe)}  # type: ignore[call-arg]
    words = _translated(arguments, _count_flags(type(recipe)) if recipe is not None else set())
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                tyro.conf.OmitArgPrefixes[options],  # type: ignore[valid-type]
                prog=program,
                args=words,
                **default,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise RecipeError(_one_paragraph(said.getvalue())) from None


def take_recipe(arguments: list[str], *, command: str) -> tuple[Recipe, list[str]]:
    """The recipe named first (or by --preset), and the words after it."""
    from plimsoll.recipes.registry import PRESETS, preset

    words = list(arguments)
    if "--preset" in words[:-1]:
        at = words.index("--preset")
        name = words.pop(at + 1)
        words.pop(at)
        if words and not words[0].startswith("-"):
            words.pop(0)
        return preset(name), words
    if not words or words[0].startswith("-"):
        raise RecipeError(
            f"plimsoll {command} needs a recipe first: {', '.join(PRESETS)}, like `plimsoll {command} code`"
        )
    return preset(words[0]), words[1:]


def _translated(arguments: list[str], counts: set[str]) -> list[str]:
    words: list[str] = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        if flag in REFUSED:
            raise RecipeError(f"{flag}: {REFUSED[flag]}")
        words += [*ALIASES.get(flag, [flag]), value] if equals else ALIASES.get(word, [word])
    for at, word in enumerate(words[:-1]):
        if word.replace("_", "-") in counts and not words[at + 1].startswith("--"):
            words[at + 1] = str(parse_count(words[at + 1]))
    return words


def _count_flags(recipe: type[Recipe]) -> set[str]:
    hints = get_type_hints(recipe, include_extras=True)
    names = {field.name for field in dataclasses.fields(recipe)}
    return {f"--{name.replace('_', '-')}" for name, hint in hints.items() if name in names and _is_count(hint)}


def _is_count(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return "count" in get_args(hint)[1:]
    return any(_is_count(part) for part in get_args(hint)) if get_origin(hint) is not None else False


def _one_paragraph(text: str) -> str:
    """tyro draws a box around its errors: the words inside, on one line."""
    bare = re.sub(r"[│╭╮╰╯─━┃┏┓┗┛├┤]+", " ", text)
    words = " ".join(bare.split())
    for noise in ("Parsing error", "Required options", "Unrecognized options"):
        words = words.removeprefix(noise).strip()
    return words or "the options cannot be read; --help lists them"
