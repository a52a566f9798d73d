"""`plimsoll COMMAND ...`: finds the command, prints refusals as one paragraph, returns the exit code.

Nothing is imported until a command needs it: `--help` answers at once.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable

from plimsoll.errors import PlimsollError, did_you_mean

COMMANDS = {
    "plan": ("plimsoll.cli.plan", "the fastest plan that fits; allocates nothing"),
    "train": ("plimsoll.cli.train", "plan, then train; again = continue"),
    "ladder": ("plimsoll.cli.ladder", "each lever in turn, measured"),
    "evaluate": ("plimsoll.cli.evaluate", "validation metrics; the loss of a text"),
    "sample": ("plimsoll.cli.sample", "text from what was trained"),
    "export": ("plimsoll.cli.verbs", "a language model for transformers, peft"),
    "solve": ("plimsoll.cli.verbs", "a puzzle by what was trained, and the steps it took"),
    "rank": ("plimsoll.cli.verbs", "the items that come next, by what was trained"),
    "report": ("plimsoll.cli.report", "one page to look at and to share"),
    "prepare": ("plimsoll.cli.prepare", "data that is made, not downloaded"),
    "inspect": ("plimsoll.cli.look", "what is in a data set, in bounded memory"),
    "fingerprint": ("plimsoll.cli.look", "one checksum of all that was learned"),
    "runs": ("plimsoll.cli.look", "the runs here, side by side"),
    "recipes": ("plimsoll.cli.look", "what there is to train"),
    "chips": ("plimsoll.cli.chips", "what can be planned for, here or not"),
    "doctor": ("plimsoll.cli.doctor", "devices, memory, disk, a step timed: ready or not"),
}
HIDDEN = {
    "completion": ("plimsoll.cli.completion", "completion"),
    "train-watched": ("plimsoll.cli.train", "train_watched"),
}
"""What a shell and our own processes call."""
CLOSING = (
    "Example: plimsoll train code --memory 768MiB --run runs/demo",
    "",
    "plimsoll COMMAND --help lists a command's options, with an example.",
    "Tab completion in bash: source <(plimsoll completion bash)",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command, and returns the exit code: 0 done, 2 refused, 3 stopped by the run itself, 130, 143 or
    129 interrupted and saved."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal cannot show is replaced, and stops nothing
            stream.reconfigure(errors="replace")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        from plimsoll.files.provenance import version

        print(f"plimsoll {version()}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS | HIDDEN:
        suggestion = did_you_mean(name, COMMANDS)
        hint = f"{suggestion} There are" if suggestion else ": there are"
        print(f"error: there is no command {name!r}{hint} {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module, function = HIDDEN[name] if name in HIDDEN else (COMMANDS[name][0], name)
    return answered(lambda: getattr(importlib.import_module(module), function)(rest))


def answered(command: Callable[[], int]) -> int:
    """Returns the exit code of the command. A refusal is printed as one paragraph."""
    try:
        return command()
    except PlimsollError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output left
        sys.stderr.close()
        return 0
    except OSError as problem:  # a full disk, a folder that may not be written to
        where = f" ({problem.filename})" if problem.filename else ""
        print(
            f"error: {problem.strerror or problem}{where}: nothing was lost; make room, or name another folder"
            " with --run or PLIMSOLL_CACHE, and run the same command again",
            file=sys.stderr,
        )
        return 2


def usage() -> str:
    lines = ["plimsoll: train inside a memory budget", ""]
    lines += [f"  plimsoll {name:<12} {purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join([*lines, "", *CLOSING])


if __name__ == "__main__":
    sys.exit(main())
