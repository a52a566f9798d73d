"""`plimsoll prepare`: data sets that are made, not downloaded."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from plimsoll.cli.parse import Json, parse
from plimsoll.data.packed.options import TextSet
from plimsoll.errors import PlimsollError
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.recipes.base import Count
from plimsoll.recipes.control.prepare_options import ControlSet
from plimsoll.recipes.puzzles.prepare_options import ArcSet, MazeSet, SudokuSet
from plimsoll.recipes.recommend.prepare_options import RecommendSet
from plimsoll.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class ControlOptions(ControlSet):
    samples: Count = 1_000_000
    """Windows to make, like 1M or 100M."""
    out: str = "windows.h5"
    """The HDF5 file. The same command continues what was interrupted."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class RechunkOptions:
    old: tyro.conf.Positional[str]
    """The HDF5 file to write anew."""
    out: str
    """The new file."""
    chunk_rows: Count = 512
    """Rows of a chunk."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class SudokuOptions(SudokuSet):
    subsample_size: Count | None = None
    """Puzzles (of side 4: grids) to train on, chosen at random, or all where there are fewer; default 1,000."""
    num_aug: Count = 1000
    """Augmentations of each; of side 4: further puzzles of the same grid."""
    test_size: Count | None = None
    """Puzzles (solution grids, where the source has no test split) to test on; default: the source's test split, or a
    tenth of the source and at most 1,000, or 1,000 generated ones, or of side 4 48 of the 288 grids."""
    out: str
    """The folder that is made."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class MazeOptions(MazeSet):
    subsample_size: Count = 1000
    """Mazes to train on, or all where the source has fewer."""
    test_size: Count | None = None
    """Mazes to test on; default: the source's test split, or a tenth of it, or 1,000 generated ones."""
    out: str
    """The folder that is made."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ArcOptions(ArcSet):
    num_aug: Count = 1000
    """Augmentations of each task, at most."""
    out: str
    """The folder that is made."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class TextOptions(TextSet):
    max_examples: Count | None = None
    """Documents to use at most."""
    vocab_size: Count | None = None
    """Of the trained tokenizer; default 8,192."""
    out: str
    """The folder that is made. The same command continues what was interrupted."""
    workers: int | None = None
    """Threads that encode; default: one for each core. With --ray: blocks under way on the cluster, in pairs."""
    ray: str | None = None
    """Encode on a Ray cluster: its address, auto for the one that is running here, or local to start one."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(RecommendSet):
    clusters: Count | None = None
    """Of items, for a two-level softmax; default the square root of their number, rounded up."""
    out: str
    """The folder that is made."""
    json: Json = False


PUZZLES = {
    "sudoku": (SudokuOptions, SudokuSet, "plimsoll.recipes.puzzles.sudoku"),
    "maze": (MazeOptions, MazeSet, "plimsoll.recipes.puzzles.maze"),
    "arc": (ArcOptions, ArcSet, "plimsoll.recipes.puzzles.arc"),
}
"""What is typed, what of it the set follows from, and who builds it."""


USAGE = """plimsoll prepare WHAT [options]

  control                      windows of 35 controlled systems: one HDF5 file
  longcontext                  text, tokenised once: a folder of ids
  sudoku, maze, arc            puzzles and their augmentations: a folder
  recommend                    who took which item after which: a folder
  rechunk OLD.h5 --out NEW.h5  any HDF5 file written anew, in chunks that are
                               quick to read in a shuffled order

Example: plimsoll prepare sudoku --size 4 --out data/sudoku-4x4

`plimsoll prepare WHAT --help` lists the options of each.
What was interrupted: the same command again."""


def prepare(arguments: list[str]) -> int:
    """Makes a data set, or writes a file anew; progress goes to standard error."""
    what, words = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    if arguments[:1] == ["--rechunk"]:
        what, words = "rechunk", arguments[1:]
    if what == "rechunk":
        return _rechunk(words)
    if what in PUZZLES:
        return _puzzles(what, words)
    if what == "longcontext":
        return _longcontext(words)
    if what == "recommend":
        return _recommend(words)
    if not what and words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if what != "control":
        raise PlimsollError(
            f"plimsoll prepare needs to know what: control, sudoku, maze or arc, whose data is made, longcontext, whose"
            f" text is packed, recommend, whose interactions are read from a file, or rechunk, got {what or 'nothing'}:"
            " `plimsoll prepare control --samples 1M --out windows.h5`, `plimsoll prepare longcontext --dataset-id"
            " my-texts/ --out packed/`, `plimsoll prepare sudoku --out data/sudoku`, `plimsoll prepare recommend"
            " --interactions ratings.csv --out data/`, `plimsoll prepare rechunk old.h5 --out new.h5`"
        )
    options = parse(ControlOptions, words, program="plimsoll prepare control")
    asked = dataclasses.asdict(options)
    as_json = asked.pop("json")
    found = ask("prepare", asked, under=environment.for_making())
    print(json.dumps(found) if as_json else _text(found))
    return 0


def _rechunk(words: list[str]) -> int:
    asked = dataclasses.asdict(parse(RechunkOptions, words, program="plimsoll prepare rechunk"))
    as_json = asked.pop("json")
    found = ask("rechunk", asked, under=environment.for_making())
    text = (
        f"{found['path']}: {found['rows']:,} rows of {found['datasets']} datasets in chunks of {found['chunk_rows']:,},"
        f" {format_bytes(found['bytes'])} (before {format_bytes(found['bytes_before'])}), in"
        f" {format_seconds(found['seconds'])}"
    )
    print(json.dumps(found) if as_json else text)
    return 0


def _longcontext(words: list[str]) -> int:
    asked = dataclasses.asdict(parse(TextOptions, words, program="plimsoll prepare longcontext"))
    out, workers, ray, as_json = Path(asked.pop("out")), asked.pop("workers"), asked.pop("ray"), asked.pop("json")
    made = TextSet(**asked)
    from plimsoll.data.packed.prepare import build
    from plimsoll.data.progress import Left

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = build(made, out, workers=workers, ray=ray, progress=Left(), say=say)
    print(json.dumps(found) if as_json else _longcontext_text(found))
    return 0


def _longcontext_text(found: dict[str, Any]) -> str:
    rate = found["tokens_per_second"]
    sizes = f"{found['tokens']:,} tokens of {found['documents']:,} documents, {format_bytes(found['bytes'])}"
    if found["finished_before"]:
        return f"{found['path']} is finished: {sizes}"
    return (
        f"{found['path']}: {sizes}, in {format_seconds(found['seconds'])} ({rate:,.0f} tokens/s)\n"
        f"  for validation: {found['validation_tokens']:,} tokens of {found['validation_documents']:,} documents\n"
        f"  ids: {found['dtype']}, of a vocabulary of {found['vocab_size']:,}"
    )


def _recommend(words: list[str]) -> int:
    asked = dataclasses.asdict(parse(RecommendOptions, words, program="plimsoll prepare recommend"))
    out, as_json = Path(asked.pop("out")), asked.pop("json")
    found = ask("recommend", {"made": asked, "out": str(out)}, under=environment.for_making())
    from plimsoll.recipes.recommend.interaction_tables import prepared_text

    print(json.dumps(found) if as_json else prepared_text(found))
    return 0


def _puzzles(what: str, words: list[str]) -> int:
    options, made, builder = PUZZLES[what]
    asked = dataclasses.asdict(parse(options, words, program=f"plimsoll prepare {what}"))
    out, as_json = Path(asked.pop("out")), asked.pop("json")
    chosen = made(**asked)
    from plimsoll.data.progress import Spoken

    found = importlib.import_module(builder).build(chosen, out, Spoken("tasks" if what == "arc" else "puzzles"))
    print(json.dumps(found) if as_json else _puzzles_text(found))
    return 0


REMARKS = {
    "left_out": "left out, since the test split has them too",
    "longer_paths": "answers whose path is not a shortest one",
    "tasks_with_fewer_augmentations": "tasks that have fewer augmentations than were asked for",
    "test_pairs_without_solution": "test pairs whose solution is not there: not trained on, and not scored",
}


def _puzzles_text(found: dict[str, Any]) -> str:
    time = f"{format_seconds(found['seconds'])} ({found['examples_per_second']:,.0f} examples/s)"
    sizes = f"{found['examples']:,} examples of {found['seq_len']:,} tokens, {format_bytes(found['bytes'])}"
    lines = [f"{found['path']}: {sizes}, in {time}"]
    for name, use in (("train", "to train on"), ("test", "to test on")):
        counts = found[name]
        lines.append(
            f"  {use}: {counts['groups']:,} groups, {counts['puzzles']:,} puzzles, {counts['examples']:,} examples"
        )
    lines += [f"  {words}: {found[name]:,}" for name, words in REMARKS.items() if found.get(name)]
    return "\n".join(lines)


def _text(found: dict) -> str:
    again = found["variants_drawn_again"]
    if found["finished_before"]:
        return f"{found['path']} is finished: {found['examples']:,} windows, {format_bytes(found['bytes'])}"
    held_out = f"{found['variants_held_out']} of {found['variants']} variants of each system held out"
    lines = [
        f"{found['path']}: {found['examples']:,} windows, {format_bytes(found['bytes'])}, in"
        f" {format_seconds(found['seconds'])} ({found['examples_per_second']:,.0f} windows/s)",
        f"  to train on: {found['train_examples']:,}; {held_out}",
    ]
    if found["trajectories_drawn_again"]:
        lines.append(f"  trajectories that ran away, and were simulated again: {found['trajectories_drawn_again']:,}")
    if again:
        words = ", ".join(f"{name} {count}" for name, count in again.items())
        lines.append(f"  variants that were unstable under the nominal gain, and drawn again: {words}")
    return "\n".join(lines)
