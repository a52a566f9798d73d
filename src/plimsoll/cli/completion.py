"""`plimsoll completion bash`: a script by which a shell completes commands, recipes, options, choices, runs and chips.

tyro knows how a shell is asked and answered: its script for a parser without options is taken, and the options of all
commands are put into it, from the fields that their help is made of. Most recipes share theirs, so each option is
written once, and each set of options as numbers. Runs and chips are completed by the shell itself: a run is a folder
with a recipe.json, up to three levels below the current one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass

import tyro

from plimsoll.cli import ladder, options, prepare
from plimsoll.cli.help import Option, options_shown
from plimsoll.cli.main import COMMANDS
from plimsoll.errors import RecipeError
from plimsoll.planner.chips import chips
from plimsoll.recipes.registry import preset, presets

FLAG = "--tyro-print-completion"
"""Option by which tyro prints a script."""
SHELLS = ("bash", "zsh")
"""Which tyro writes by itself; for tcsh it would need another library."""
SPEC = "COMPLETION_SPEC = "
"""Beginning of the line of tyro's script that has all commands with their options."""

RUNS_AND_CHIPS = {
    "bash": r"""
_plimsoll_runs() {
  local file
  for file in {,*/,*/*/}*/recipe.json; do
    if [ -e "$file" ]; then printf '%%s\n' "${file%%/recipe.json}"; fi
  done
}

_plimsoll() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" IFS=$'\n'
  local chips='%(chips)s'
  if [[ "$before" == --chip || "$before" == --compare || "$before" == chips ]] && [[ "$word" != -* ]]; then
    COMPREPLY=($(compgen -W "${chips// /$'\n'}" -- "$word"))
    return 0
  fi
  case "$before" in
    evaluate | sample | export | solve | rank | report | fingerprint | inspect | --run)
      if [[ "$word" != -* ]]; then
        COMPREPLY=($(compgen -W "$(_plimsoll_runs)" -- "$word"))
        if [ ${#COMPREPLY[@]} -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi
        return 0
      fi
      ;;
  esac
  IFS=$' \t\n' _tyro_plimsoll
}
complete -F _plimsoll plimsoll
""",
    "zsh": r"""
_plimsoll_or_tyro() {
  case "${words[CURRENT-1]}" in
    --chip | --compare | chips)
      if [[ "${words[CURRENT]}" != -* ]]; then compadd -- %(chips)s; return; fi
      ;;
    evaluate | sample | export | solve | rank | report | fingerprint | inspect | --run)
      if [[ "${words[CURRENT]}" != -* ]]; then
        local -a runs
        runs=(*/recipe.json(N:h) */*/recipe.json(N:h) */*/*/recipe.json(N:h))
        compadd -- $runs || _files
        return
      fi
      ;;
  esac
  _tyro_plimsoll "$@"
}
_plimsoll_or_tyro "$@"
""",
}
"""End of each shell's script: completes runs and chips, and calls tyro's function for everything else."""
BY_RECIPE = {"plan": options.PlanOptions, "train": options.TrainOptions, "ladder": ladder.LadderOptions}
OTHERS = {
    name: getattr(importlib.import_module(module), f"{name.capitalize()}Options")
    for name, (module, _) in COMMANDS.items()
    if name not in BY_RECIPE and name != "prepare"
}
"""Options of the other commands: of `plimsoll runs`, the class `RunsOptions` in the module of `runs`."""

Entry = tuple[str, str, tuple[str, ...], str]
"""An option: its flags, what follows them (tyro's `flag` for nothing, `choice`, `path` or `value`), the choices, and a
description."""
SET = """
def _command(description, numbers, below=None):
    found = [OPTIONS[number] for number in numbers]
    options = [
        {"flags": flags.split(), "type": kind, "choices": choices, "nargs": 1, "description": text}
        for flags, kind, choices, text in found
    ]
    below = {name: _command(text, SETS[number]) for name, (text, number) in (below or {}).items()}
    return {"description": description, "options": options, "subcommands": below}


COMPLETION_SPEC = {"options": _command("", SETS[0])["options"], "subcommands": {
    name: _command(text, SETS[number], below) for name, (text, number, below) in COMMANDS.items()
}}
"""
"""Python that makes of OPTIONS, SETS of their numbers and COMMANDS what tyro's script looks commands up in."""


def completion(arguments: list[str]) -> int:
    """Prints the script of a shell, whose name is the one argument."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        got = " ".join(arguments) or "nothing"
        raise RecipeError(f"plimsoll completion takes a shell, one of {', '.join(SHELLS)}, got {got}")
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(_Nothing, prog="plimsoll", args=[FLAG, *arguments])
    spec = specification(described=arguments == ["zsh"])  # bash shows no descriptions
    lines = [spec if line.startswith(SPEC) else line for line in script.getvalue().splitlines()]
    if arguments == ["zsh"]:
        lines.remove('_tyro_plimsoll "$@"')  # it is called below
    print("\n".join([*lines, RUNS_AND_CHIPS[arguments[0]] % {"chips": " ".join(chip.name for chip in chips())}]))
    return 0


@dataclass(frozen=True)
class _Nothing:
    """Options of a parser that has none."""


def specification(*, described: bool) -> str:
    """Returns Python that defines COMPLETION_SPEC: all commands with their options.

    Args:
        described: Whether options have their descriptions.
    """
    known: dict[Entry, int] = {}
    sets: dict[tuple[int, ...], int] = {}

    def number_of(shown: Iterable[Option]) -> int:
        """Returns the number of a set of options."""
        entries: list[Entry] = [("-h --help", "flag", (), "show help message and exit")]
        entries += [_entry(option) for option in shown if option.group != "arguments"]
        numbers = [
            known.setdefault((flags, kind, choices, text if described else ""), len(known))
            for flags, kind, choices, text in entries
        ]
        return sets.setdefault(tuple(numbers), len(sets))

    number_of(())  # SETS[0]: --help alone
    recipes = {name: each.purpose for name, each in presets().items()}
    commands = {}
    for name, shown in every_option().items():
        purpose = COMMANDS[name][1]
        if isinstance(shown, list):
            commands[name] = (purpose, number_of(shown), {})
        else:
            below = {each: (recipes.get(each, each), number_of(options)) for each, options in shown.items()}
            commands[name] = (purpose, number_of(()), below)
    lines = ["OPTIONS = [", *(f"{entry}," for entry in known), "]", "SETS = [", *(f"{[*each]}," for each in sets), "]"]
    return "\n".join([*lines, "COMMANDS = {", *(f"{name!r}: {each}," for name, each in commands.items()), "}", SET])


def every_option() -> dict[str, list[Option] | dict[str, list[Option]]]:
    """Returns the options of every command; by recipe or data set, where one follows the command."""
    recipes = {}
    for name in presets():
        with contextlib.suppress(RecipeError):  # of a broken package, which `plimsoll recipes` names
            recipes[name] = preset(name)
    return {
        **{name: options_shown(kind) for name, kind in OTHERS.items()},
        **{
            command: {name: options_shown(kind, recipe) for name, recipe in recipes.items()}
            for command, kind in BY_RECIPE.items()
        },
        "prepare": {what: options_shown(kind) for what, kind in prepare.every_options().items()},
    }


def _entry(option: Option) -> Entry:
    """Returns an option as the script has it.

    The default stays away: it differs between recipes that have the option in common.
    """
    flags = re.findall(r"--[a-z0-9-]+", option.usage)
    value = option.usage.removeprefix(", ".join(flags)).strip()
    choices = tuple(word for words in re.findall(r"\{(.*?)\}", value) for word in words.split(","))
    kind = "choice" if choices else "value" if value in ("INT", "FLOAT", "[STR ...]") else "path" if value else "flag"
    return " ".join(flags), kind, choices, re.sub(r" \((default: .*|required)\)$", "", option.text)
