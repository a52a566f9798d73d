"""`plimsoll completion bash`: completes commands, recipes and options by tyro, and runs and chips by the shell itself.

Every command parses for itself, so that none waits for another; here they are put together into one parser, once. A run
is a folder with a recipe.json, up to three levels below the current one: the shell finds it without starting Python.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro
from tyro import MISSING

from plimsoll.cli import ladder, options, prepare
from plimsoll.cli.main import COMMANDS
from plimsoll.errors import RecipeError
from plimsoll.planner.chips import chips
from plimsoll.recipes.registry import preset, presets

FLAG = "--tyro-print-completion"
"""Option by which tyro prints a script."""
SHELLS = ("bash", "zsh")
"""Which tyro writes by itself; for tcsh it would need another library."""

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


def completion(arguments: list[str]) -> int:
    """Prints the script of a shell, whose name is the one argument."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        got = " ".join(arguments) or "nothing"
        raise RecipeError(f"plimsoll completion takes a shell, one of {', '.join(SHELLS)}, got {got}")
    recipes = {}
    for name in presets():
        with contextlib.suppress(RecipeError):  # of a broken package, which `plimsoll recipes` names
            recipes[name] = preset(name)
    by_recipe = {
        command: _either({name: (kind, kind(recipe=recipe)) for name, recipe in recipes.items()})
        for command, kind in BY_RECIPE.items()
    }
    prepared = {"prepare": _either({name: (kind, MISSING) for name, kind in prepare.every_options().items()})}
    every = {name: (kind, MISSING) for name, kind in (by_recipe | prepared | OTHERS).items()}
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(tyro.conf.OmitArgPrefixes[_either(every)], prog="plimsoll", args=[FLAG, *arguments])
    # A help text of two lines would be offered as two completions (tyro 1.0.17): line breaks inside the texts go.
    lines = [
        line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC = ") else line
        for line in script.getvalue().splitlines()
    ]
    if arguments == ["zsh"]:
        lines.remove('_tyro_plimsoll "$@"')  # it is called below
    print("\n".join([*lines, RUNS_AND_CHIPS[arguments[0]] % {"chips": " ".join(chip.name for chip in chips())}]))
    return 0


def _either(commands: Mapping[str, tuple[Any, Any]]) -> Any:
    """Returns a type that is one of these, chosen by its name."""
    kinds = [Annotated[kind, tyro.conf.subcommand(name, default=default)] for name, (kind, default) in commands.items()]
    return reduce(or_, kinds)
