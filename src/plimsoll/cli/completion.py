"""`plimsoll completion bash`: a script by which bash completes commands, recipes, options, choices, runs and chips.

Options come from the fields that help is made of: those of each command, and those of each recipe, once. Runs are
looked for by the shell itself: a run is a folder with a recipe.json, up to three levels below the current one.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterable, Mapping

from plimsoll.cli import ladder, options, prepare
from plimsoll.cli.help import Option, options_shown
from plimsoll.cli.main import COMMANDS
from plimsoll.errors import RecipeError
from plimsoll.planner.chips import chips
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.registry import preset, presets

SCRIPT = r"""
_plimsoll_runs() {
  local file
  for file in {,*/,*/*/}*/recipe.json; do
    if [ -e "$file" ]; then printf '%%s\n' "${file%%/recipe.json}"; fi
  done
}

_plimsoll() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" IFS=$'\n'
  if [[ "$word" == -* ]]; then
    case "${COMP_WORDS[1]}" in
%(options)s
    esac
    case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in
%(options_of_recipes)s
    esac
  else
    case "$before" in
%(values)s
    %(numbers)s) ;;
    evaluate | sample | export | solve | rank | report | fingerprint | --run)
      COMPREPLY=($(compgen -W "$(_plimsoll_runs)" -- "$word"))
      if [ ${#COMPREPLY[@]} -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
      return ;;
    *)
      if [ "$COMP_CWORD" -gt 1 ]; then COMPREPLY=($(compgen -f -- "$word")); return; fi
      words="%(commands)s" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "${words// /$'\n'}" -- "$word"))
}
complete -F _plimsoll plimsoll
"""
BY_RECIPE = {"plan": options.PlanOptions, "train": options.TrainOptions, "ladder": ladder.LadderOptions}
OTHERS = {
    name: getattr(importlib.import_module(module), f"{name.capitalize()}Options")
    for name, (module, _) in COMMANDS.items()
    if name not in BY_RECIPE and name != "prepare"
}
"""Options of the other commands: of `plimsoll runs`, the class `RunsOptions` in the module of `runs`."""
NUMBERS = ("INT", "FLOAT", "INT|FLOAT")
"""Kinds of values that nothing completes."""


def completion(arguments: list[str]) -> int:
    """Prints the script of a shell, whose name is the one argument."""
    if arguments != ["bash"]:
        got = " ".join(arguments) or "nothing"
        raise RecipeError(f"plimsoll completion writes a script for one shell, `plimsoll completion bash`, got {got}")
    print(script())
    return 0


def script() -> str:
    """Returns the script for bash."""
    # Options by the words before them.
    recipes = known_recipes()
    of_commands = {name: options_shown(kind) for name, kind in OTHERS.items()}
    for name, kind in BY_RECIPE.items():
        shown = options_shown(kind, next(iter(recipes.values())))
        of_commands[name] = [option for option in shown if option.group in ("options", "levers")]
    of_recipes = {f'"prepare {name}"': options_shown(kind) for name, kind in prepare.every_options().items()}
    for name, recipe in recipes.items():
        shown = options_shown(options.PlanOptions, recipe)
        fields = [option for option in shown if option.group not in ("options", "levers")]
        of_recipes[" | ".join(f'"{command} {name}"' for command in BY_RECIPE)] = fields

    # Values by the option before them.
    values = {" | ".join(BY_RECIPE): [*recipes], "prepare": [*prepare.every_options()]}
    values["--chip | --compare | chips"] = [chip.name for chip in chips()]
    numbers = {}
    for option in [option for shown in (*of_commands.values(), *of_recipes.values()) for option in shown]:
        flag, _, value = option.usage.partition(" ")
        if choices := re.findall(r"\{(.*?)\}", value):
            values[flag] = list(dict.fromkeys([*values.get(flag, ()), *",".join(choices).split(",")]))
        elif value in NUMBERS:
            numbers[flag] = value

    return SCRIPT % {
        "options": _cases({name: _flags(shown) for name, shown in of_commands.items()}),
        "options_of_recipes": _cases({name: _flags(shown) for name, shown in of_recipes.items()}),
        "values": _cases(values),
        "numbers": " | ".join(numbers),
        "commands": " ".join(COMMANDS),
    }


def known_recipes() -> dict[str, Recipe]:
    """Returns the recipes by their names, without those of a broken package, which `plimsoll recipes` names."""
    recipes = {}
    for name in presets():
        with contextlib.suppress(RecipeError):
            recipes[name] = preset(name)
    return recipes


def _flags(shown: Iterable[Option]) -> list[str]:
    return [flag for option in shown for flag in re.findall(r"--[a-z0-9-]+", option.usage)]


def _cases(words: Mapping[str, Iterable[str]]) -> str:
    """Returns branches of a `case`, which add words by a pattern."""
    return "\n".join(f"    {pattern}) words+=' {' '.join(added)}' ;;" for pattern, added in words.items())
