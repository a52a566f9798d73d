"""`plimsoll fingerprint`, `runs`, `recipes`, `config` and `inspect`: commands that only show runs, recipes and data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from plimsoll.api import use
from plimsoll.api.run_facts import run_row
from plimsoll.cli.parse import OfRun, Printed, parse, parse_with_recipe, print_answer
from plimsoll.errors import PlimsollError, as_written
from plimsoll.options import Argument, Options

BELOW_RECIPES = (
    "A file of your own is a recipe too: `plimsoll train my_recipe.py` (docs/your-own.md).",
    "`plimsoll train NAME --help` lists a recipe's options.",
)


FingerprintOptions = OfRun
"""Options of `fingerprint`. `parse.options_of_command` finds a command's options by this name."""


@dataclass(frozen=True, kw_only=True)
class RunsOptions(Printed):
    folder: Annotated[str, Argument("[FOLDER]")] = "runs"
    """Folder whose runs are listed, subfolders included."""


@dataclass(frozen=True, kw_only=True)
class RecipesOptions(Printed):
    """Options of `recipes`: only --json."""


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(Options):
    """Options of `config`: none besides the recipe's."""


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Printed):
    path: Annotated[str, Argument("PATH")]
    """File, folder, or Hugging Face id of the data set."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""
    dataset_config: str | None = None
    """Configuration of a Hugging Face data set. By default the data set's default."""
    split: str = "train"
    """Split of a Hugging Face data set."""


def fingerprint(arguments: list[str]) -> int:
    """Prints a SHA-256 hash of a run's newest intact checkpoint, and the checkpoint's step."""
    options = parse(FingerprintOptions, arguments, command="fingerprint")
    answer = use.fingerprint(options.run)
    for note in answer["notes"]:
        print(f"note: {note}; the newest whole one is of step {answer['step']:,}", file=sys.stderr)
    return print_answer(options, answer, lambda answer: f"{answer['fingerprint']}  step {answer['step']}")


def recipes(arguments: list[str]) -> int:
    """Prints the names and purposes of all recipes."""
    options = parse(RecipesOptions, arguments, command="recipes")
    from plimsoll.recipes.registered import installed, presets

    rows = [{"name": name, "purpose": preset.purpose} for name, preset in presets().items()]
    return print_answer(options, {"recipes": rows, "broken": installed().broken}, _recipes_text)


def _recipes_text(answer: Mapping[str, Any]) -> str:
    from plimsoll.report.layout import columns

    lines = columns([list(row.values()) for row in answer["recipes"]], align="ll")
    lines += [f"\nThe recipe package {problem}." for problem in answer["broken"]]
    return "\n".join([*lines, "", *BELOW_RECIPES])


def config(arguments: list[str]) -> int:
    """Prints a recipe as the TOML file that `--config FILE` reads."""
    typed = parse_with_recipe(ConfigOptions, arguments, command="config")
    from plimsoll.recipes.config import to_toml

    print(to_toml(typed.recipe, typed.name))
    return 0


def runs(arguments: list[str]) -> int:
    """Prints a table with a line per run."""
    options = parse(RunsOptions, arguments, command="runs")
    from plimsoll.report.tables import runs_table

    folder = Path(options.folder).expanduser()
    if not folder.is_dir() and options.folder != "runs":
        raise PlimsollError(f"there is no folder {options.folder!r}: name one that has runs in it or below it")
    paths = [file.parent for file in sorted(folder.glob("**/recipe.json"))]
    rows = [run_row(path, name=str(path.relative_to(folder))) for path in paths]
    return print_answer(options, {"runs": rows}, lambda _: runs_table(rows))


def inspect(arguments: list[str]) -> int:
    """Prints a description of a data set, from the first 8 MiB of text."""
    options = parse(InspectOptions, arguments, command="inspect")
    from plimsoll.recipes.registered import families
    from plimsoll.recipes.verbs import resolved

    for family in families():
        for form in family.inspects:
            if resolved(form.recognises)(options.path):
                with as_written(options.path):
                    return print_answer(options, resolved(form.describe)(options.path), resolved(form.table))
    from plimsoll.data.hdf5 import survey

    if survey.is_hdf5(options.path):
        from plimsoll.report.data_tables import hdf5_table

        return print_answer(options, survey.describe(options.path), hdf5_table)
    from plimsoll.data.text.opening import open_documents
    from plimsoll.data.text.survey import describe_text

    documents = open_documents(
        options.path, config=options.dataset_config, split=options.split, text_column=options.text_column
    )
    return print_answer(options, describe_text(documents), _data_text)


def _data_text(described: Mapping[str, Any]) -> str:
    from plimsoll.report.layout import all_labelled, known

    read = f"{described['scanned_documents']:,} documents, {described['scanned_characters']:,} characters"
    how_much = "all of it" if described["scan_complete"] else "the beginning; there is more"
    mean, longest = known(described["mean_characters"], ","), described["longest_characters"]
    rows = [
        ("data", described["description"]),
        ("columns", ", ".join(described["columns"] or ["none"])),
        ("read", f"{read}: {how_much}"),
        ("for validation", f"{described['scanned_held_out_documents']:,} of these documents"),
        ("a document", f"{mean} characters on average, {longest:,} at most"),
        *(("begins", repr(sample)) for sample in described["samples"]),
    ]
    return "\n".join([described["name"], *all_labelled(rows)])
