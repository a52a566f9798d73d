"""Tab completion: `complete -o default -C "plimsoll complete" plimsoll`, in bash, and in zsh by bashcompinit.

The shell starts `plimsoll complete` with the typed line in COMP_LINE, and the position of the cursor in COMP_POINT.
Candidates come from the options that help shows. Without candidates, the shell completes names of files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from plimsoll.cli.main import COMMANDS
from plimsoll.cli.options import lever_rows
from plimsoll.cli.parse import forms_of, options_of_command, recipe_named
from plimsoll.cli.prepare import page_of
from plimsoll.errors import PlimsollError
from plimsoll.options import Option
from plimsoll.recipes.flat import rows
from plimsoll.recipes.registered import preparations, presets

CHIPS, RUNS = {"CHIP", "CHIPS", "[NAME]"}, {"RUN", "[RUN]", "FOLDER"}
"""Placeholders in help (`Option.metavar`) for values that are chips, and for values that are runs."""


def complete() -> int:
    """Prints the candidates for the word at the cursor, one per line."""
    cursor = int(os.environ.get("COMP_POINT", "0"))
    print("\n".join(candidates(os.environ.get("COMP_LINE", "")[:cursor])))
    return 0


def candidates(typed: str) -> list[str]:
    """Returns the completions of the last word of a line.

    Args:
        typed: Line up to the cursor.
    """
    *before, current = typed.replace("=", " ").split(" ")
    before = [word for word in before if word]
    return sorted({word for word in _words_after(before[1:], current) if word.startswith(current)})


def _words_after(before: Sequence[str], current: str) -> Iterable[str]:
    """Returns possible words at the cursor, after the words `before`. `current` is the typed part of the word."""
    if not before:
        return COMMANDS
    command, *words = before
    if command not in COMMANDS:
        return ()

    # Complete an option, or the name of the recipe or data set after the command.
    options = _options(command, words)
    if current.startswith("-"):
        return [form for option in options for form in forms_of(option)]
    if not words and COMMANDS[command].takes_recipe:
        return presets()
    if not words and command == "prepare":
        return preparations()

    # Complete a value of the option before the cursor, or else of the command's argument.
    asking = [option for option in options if words and option.flag == words[-1] and not option.is_switch]
    asking = asking or [option for option in options if option.is_argument]
    return [value for option in asking for value in _values(option)]


def _options(command: str, words: Sequence[str]) -> Sequence[Option]:
    """Returns the options of a command, and of the recipe or data set after it."""
    try:
        if COMMANDS[command].takes_recipe:
            return (*rows(recipe_named(words[0])), *options_of_command(command), *lever_rows())
        if command == "prepare":
            return page_of(words[0], preparations()[words[0]]).options
    except (PlimsollError, LookupError):  # the recipe or data set does not exist
        return ()
    return options_of_command(command)


def _values(option: Option) -> Iterable[str]:
    """Returns the values to suggest for an option: choices, chips or runs."""
    if option.choices:
        return [str(choice) for choice in option.choices]
    if option.metavar in CHIPS:
        from plimsoll.planner.chips import chips

        return [chip.name for chip in chips()]
    if option.metavar in RUNS:
        return [str(file.parent) for pattern in ("*", "*/*", "*/*/*") for file in Path().glob(f"{pattern}/recipe.json")]
    return ()
