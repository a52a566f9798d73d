"""`plimsoll train A B C --runs DIR`: one run after another, each in a process of its own, and continued as a whole.

A run is what `plimsoll train A --run DIR/A` makes. What is finished is skipped; what fails stops no other one; an
interruption stops the one that trains, which saves, and those after it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from plimsoll.cli.look import run_row
from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import words_without
from plimsoll.errors import RecipeError
from plimsoll.processes.supervise import watched
from plimsoll.recipes.own.files import short_name
from plimsoll.recipes.saved import is_saved_as
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.store import is_address

KNOWN_CODES = (0, 2, 3)
"""Done, refused, stopped by the run itself: any other is worse."""


def train_several(names: Sequence[str], options: Mapping[str, TrainOptions], shared: Sequence[str]) -> int:
    """Trains the recipes and returns the worst exit code. `shared` are the options of all, as typed."""
    folders = {name: Path(options[name].runs or "").expanduser() / short_name(name) for name in names}
    _require_apart(names, options, folders)
    without_runs = words_without(shared, {"--runs": True})
    codes = {}
    for number, name in enumerate(names, start=1):
        place = f"[{number}/{len(names)}] {name}"
        folder = folders[name]
        ended = (folder / "recipe.json").is_file() and run_row(folder, name=folder.name)["state"] == "finished"
        # Of another recipe than this very one, it is for `train` to refuse.
        if ended and is_saved_as(RunFolder(folder).read("recipe.json"), options[name].recipe):
            print(f"{place}: finished, skipped ({folder})", flush=True)
            continue
        print(f"{place}: {folder}", flush=True)
        command = [sys.executable, "-m", "plimsoll.cli.main", "train", name, *without_runs, "--run"]
        codes[name], interrupted = watched([*command, str(folder)], tied=True)
        if codes[name]:
            print(f"{place}: ended with code {codes[name]}", file=sys.stderr, flush=True)
        if interrupted:
            print("interrupted: the same command goes on from here", file=sys.stderr)
            return codes[name]
    from plimsoll.report.tables import runs_table

    rows = [run_row(folder, name=folder.name) for folder in folders.values() if (folder / "recipe.json").is_file()]
    print(f"\n{runs_table(rows)}" if rows else "no run was begun")
    return max(codes.values(), key=lambda code: (code not in KNOWN_CODES, code), default=0)


def _require_apart(names: Sequence[str], options: Mapping[str, TrainOptions], folders: Mapping[str, Path]) -> None:
    if len({*folders.values()}) < len(names):
        raise RecipeError(
            f"two of {', '.join(names)} would have the same run in {options[names[0]].runs}: name each once, and files"
            " of your own by different names"
        )
    if is_address(options[names[0]].runs):
        raise RecipeError(
            f"--runs {options[names[0]].runs} is an address, and --runs takes a folder: train one recipe at a time,"
            f" like `plimsoll train {names[0]} --run {options[names[0]].runs}/{names[0]}`"
        )
    if any(each.on is not None for each in options.values()):
        raise RecipeError(
            "--on starts one run on its nodes, and --runs trains several one after the other: train one recipe at a"
            " time, with --run"
        )
    if any(each.run is not None for each in options.values()):
        raise RecipeError("--run names one run, and --runs the folder that several have theirs in: give one of them")
