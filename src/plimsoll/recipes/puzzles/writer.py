"""Writes a data set of puzzles group by group, in bounded memory. The folder exists only once it is complete."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from jaxtyping import Int, UInt8

from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError
from plimsoll.files.facts import facts_of
from plimsoll.files.folder import made
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS, NAMES, SPLITS
from plimsoll.recipes.puzzles.prepare_options import ArcOptions, MazeOptions, SudokuOptions

Split = Literal["train", "test"]
Tokens = UInt8[np.ndarray, "examples seq_len"]
Boards = UInt8[np.ndarray, "puzzles side side"]
BLANK = "<blank>"
"""Name of identifier 0, which all Sudokus and mazes have."""


@dataclass(frozen=True)
class Group:
    """Puzzles that are augmentations of one another, with their examples."""

    split: Split
    inputs: Tokens
    labels: Tokens
    sizes: Int[np.ndarray, " puzzles"]
    """Number of examples of each puzzle."""
    identifiers: Int[np.ndarray, " puzzles"]


def group_of_boards(split: Split, questions: Boards, answers: Boards) -> Group:
    """Returns a group whose puzzles have one example each, and the blank identifier."""
    count = len(questions)
    sizes = np.ones(count, np.int32)
    return Group(split, questions.reshape(count, -1), answers.reshape(count, -1), sizes, np.zeros_like(sizes))


class SplitFiles:
    """Files of one split (see recipes/puzzles/dataset.py). `add` writes tokens; `finish` writes all else."""

    def __init__(self, folder: Path, *, seq_len: int, files: ExitStack) -> None:
        folder.mkdir()
        self.folder = folder
        self.seq_len = seq_len
        self.tables = {}
        for name in (INPUTS, LABELS):
            self.tables[name] = files.enter_context(open(folder / f"all__{name}.npy", "wb"))  # noqa: SIM115  (the stack closes it)
            self._write_header(self.tables[name], rows=0)
        self.sizes = [np.zeros(1, np.int32)]
        self.identifiers: list[np.ndarray] = []

    def _write_header(self, file: BinaryIO, *, rows: int) -> None:
        """Writes the header of an `.npy` file. NumPy leaves space in it for a larger number of rows."""
        file.seek(0)
        about = {"descr": "|u1", "fortran_order": False, "shape": (rows, self.seq_len)}
        np.lib.format.write_array_header_1_0(file, about)

    def add(self, group: Group) -> None:
        self.tables[INPUTS].write(group.inputs.tobytes())
        self.tables[LABELS].write(group.labels.tobytes())
        self.sizes.append(group.sizes)
        self.identifiers.append(group.identifiers)

    def finish(self, *, vocab_size: int, identifiers: int) -> dict[str, int]:
        """Completes all files, and returns the numbers of groups, puzzles and examples."""
        if not self.identifiers:
            raise DataError(f"no puzzle is left to {self.folder.name} on: ask for fewer in the other split")

        # Write identifiers, and offsets of puzzles and groups.
        offsets = {
            IDENTIFIERS: np.concatenate(self.identifiers),
            "puzzle_indices": np.cumsum(np.concatenate(self.sizes)),
            "group_indices": np.cumsum([0, *map(len, self.identifiers)]),
        }
        for name, values in offsets.items():
            np.save(self.folder / f"all__{name}.npy", values.astype(np.int32))

        # Write headers with the number of rows, and dataset.json.
        groups = len(self.identifiers)
        puzzles = len(offsets[IDENTIFIERS])
        examples = int(offsets["puzzle_indices"][-1])
        for file in self.tables.values():
            self._write_header(file, rows=examples)
        about = {
            "seq_len": self.seq_len,
            "vocab_size": vocab_size,
            "pad_id": 0,
            "ignore_label_id": 0,
            "blank_identifier_id": 0,
            "num_puzzle_identifiers": identifiers,
            "total_groups": groups,
            "mean_puzzle_examples": examples / puzzles,
            "total_puzzles": puzzles,
            "sets": ["all"],
        }
        (self.folder / "dataset.json").write_text(json.dumps(about), "utf-8")
        return {"groups": groups, "puzzles": puzzles, "examples": examples}


def write_puzzles(
    options: SudokuOptions | MazeOptions | ArcOptions,
    groups: Iterable[Group],
    *,
    count: int,
    seq_len: int,
    vocab_size: int,
    names: Sequence[str] = (BLANK,),
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes a data set. Returns its sizes and the seconds taken, as `prepare --json` prints them.

    Args:
        options: Options with the folder's name, `out`.
        groups: Groups in the order of writing; an iterator may make them one by one.
        count: Number of groups.
        seq_len: Tokens of a puzzle.
        vocab_size: Number of different tokens, with padding.
        names: Name of each identifier, complete when the last group is made.
        more: Content of further JSON files, by file name.

    Raises:
        DataError: `out` exists.
        StoppedError: The disk became full.
    """
    started = time.perf_counter()
    out = Path(options.out).expanduser().absolute()
    if out.exists():
        raise DataError(f"{out} is there already: name another --out, or remove it")

    def make(partial: Path) -> dict[str, Any]:
        progress = Spoken()
        with ExitStack() as files:
            splits = {name: SplitFiles(partial / name, seq_len=seq_len, files=files) for name in SPLITS}
            for number, group in enumerate(groups, 1):
                splits[group.split].add(group)
                progress(number / count, f"{number:,} of {count:,} groups")
            sizes = {"vocab_size": vocab_size, "identifiers": len(names)}
            counts = {name: split.finish(**sizes) for name, split in splits.items()}
        for name, content in {NAMES: names, **(more or {})}.items():
            (partial / name).write_text(json.dumps(content), "utf-8")
        return {**counts, "seq_len": seq_len, **sizes}

    made_with = facts_of([], **{name: value for name, value in asdict(options).items() if name != "out"})
    counts = made(out, made_with, make).counts
    return {"path": str(out), "seconds": time.perf_counter() - started, **counts}
