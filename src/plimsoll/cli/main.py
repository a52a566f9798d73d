"""`plimsoll COMMAND ...`: finds and runs a command, prints an error as one paragraph, and returns the exit code.

Modules are imported only when a command needs them, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any, NamedTuple

from plimsoll.errors import PlimsollError, did_you_mean, names_in_words


class Command(NamedTuple):
    """A command, as the list of commands shows it."""

    module: str
    """Module of `cli` that has the command's options, and a function with the same name as the command."""
    purpose: str
    example: str
    """Example as a complete command line; empty for commands with a recipe, which has its own (`Preset.example`)."""

    @property
    def takes_recipe(self) -> bool:
        return not self.example


GROUPS = {
    "before and while training": {
        "recipes": Command("look", "the recipes that can be trained", "plimsoll recipes --json"),
        "config": Command("look", "a recipe as a TOML file, to edit and to train", ""),
        "plan": Command("plan", "the fastest plan that fits; allocates nothing", ""),
        "train": Command("train", "plan, then train; again = continue", ""),
        "resume": Command("train", "continue a run, from any folder", "plimsoll resume runs/mine"),
        "ladder": Command("ladder", "each lever in turn, measured", ""),
        "runs": Command("look", "the runs here, side by side", "plimsoll runs runs/compared"),
    },
    "what was trained": {
        "evaluate": Command("verbs", "validation metrics; the loss of a text", "plimsoll evaluate runs/mine"),
        "sample": Command(
            "verbs", "text from what was trained", 'plimsoll sample runs/mine --prompt "Once upon a time"'
        ),
        "solve": Command(
            "verbs",
            "a puzzle, solved by the model, and the steps it took",
            'plimsoll solve runs/four "21.. .3.. .4.2 ...3"',
        ),
        "rank": Command(
            "verbs", "the items that come next, by the model", "plimsoll rank runs/mine --history 12,88,401"
        ),
        "export": Command(
            "verbs", "a language model for transformers, peft", "plimsoll export runs/mine --merged exported/"
        ),
        "report": Command("report", "one page to look at and to share", "plimsoll report runs/mine"),
        "fingerprint": Command("look", "one checksum of all that was learned", "plimsoll fingerprint runs/mine"),
    },
    "data and machines": {
        "prepare": Command(
            "prepare",
            "data sets: made here, or packed for reading",
            "plimsoll prepare sudoku --size 4 --out data/sudoku-4x4",
        ),
        "inspect": Command("look", "what is in a data set, in bounded memory", "plimsoll inspect my-texts/"),
        "chips": Command("chips", "chips to plan for, in this machine or not", "plimsoll chips h200"),
        "doctor": Command("doctor", "devices, memory, disk, products timed: ready or not", "plimsoll doctor"),
    },
}
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}
CLOSING = (
    "Start here: plimsoll train code --memory 768MiB --run runs/demo",
    "",
    "plimsoll COMMAND -h is short, --help has every option; plimsoll --version.",
    "Pages: docs/index.md of the source, or help(plimsoll) in Python.",
    'Tab completion in bash: complete -o default -C "plimsoll complete" plimsoll',
)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command, and returns the exit code.

    0: done. 2: an error, like an invalid option. 3: training stopped itself. 129, 130 or 143: interrupted and saved.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # replace characters that the terminal cannot show
            stream.reconfigure(errors="replace")
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name == "--version":
        from plimsoll.files.provenance import version

        print(f"plimsoll {version()}")
        return 0
    if name == "complete":  # called by a shell for Tab completion
        return module_of_cli("complete").complete()
    if name not in COMMANDS:
        from plimsoll.recipes.registered import presets

        if name in presets():
            hint = f": it is a recipe, `plimsoll train {name}`."
        else:
            hint = did_you_mean(name, COMMANDS) or f": there are {names_in_words(COMMANDS)}."
        print(f"error: there is no command {name!r}{hint} `plimsoll` lists all of them", file=sys.stderr)
        return 2
    return exit_code_of(name, rest)


def module_of_cli(name: str) -> Any:
    """Imports a module with commands, and returns it."""
    return importlib.import_module(f"plimsoll.cli.{name}")


def exit_code_of(name: str, arguments: list[str]) -> int:
    """Runs a command, and returns its exit code. An error is printed as one paragraph."""
    try:
        command = getattr(module_of_cli(COMMANDS[name].module), name)
        return command(arguments)
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the program that reads our output has ended
        sys.stderr.close()
        return 0
    except OSError as problem:  # like a full disk, or a folder without permission to write
        where = f" ({problem.filename})" if problem.filename else ""
        print(
            f"error: {problem.strerror or problem}{where}: nothing was lost; make room, or name another folder"
            " with --run or PLIMSOLL_CACHE, and run the same command again",
            file=sys.stderr,
        )
        return 2


def usage() -> str:
    """Returns the list of commands, which `plimsoll` without arguments prints."""
    lines = ["plimsoll: train inside a memory budget"]
    for title, commands in GROUPS.items():
        lines += ["", title]
        lines += [f"  plimsoll {name:<12} {command.purpose}" for name, command in commands.items()]
    return "\n".join([*lines, "", *CLOSING])


if __name__ == "__main__":
    sys.exit(main())
