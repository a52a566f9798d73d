"""Writer of a data set of puzzles: group by group, in bounded memory, and complete or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError
from plimsoll.files.facts import facts_of
from plimsoll.files.folder import free_bytes, made
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS, NAMES, SPLITS
from plimsoll.recipes.puzzles.prepare_options import ArcOptions, MazeOptions, SudokuOptions
from plimsoll.units import format_bytes

Split = Literal["train", "test"]
Group = tuple[Split, np.ndarray, np.ndarray]
"""Split, questions and answers of a group whose puzzles have one example each: tokens, (puzzles, side, side)."""

BLANK = "<blank>"
"""Name of identifier 0."""
ROW_BYTES, FIXED_BYTES = 12, 4096
"""Bytes of a puzzle besides its tokens, and of headers and JSON files."""


class GrowingArray:
    """`.npy` file that rows are appended to. NumPy leaves room in the header for the number of rows."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type[np.generic], files: ExitStack) -> None:
        self._shape, self._dtype, self.rows = shape, np.dtype(dtype), 0
        self._file = files.enter_context(open(path, "wb"))  # noqa: SIM115  (the stack closes it)
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        assert values.shape[1:] == self._shape
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self.rows += len(values)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        about = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.rows, *self._shape)}
        np.lib.format.write_array_header_1_0(self._file, about)


class SplitFiles:
    """Files of the arrays of one split (recipes/puzzles/dataset.py describes them)."""

    def __init__(self, folder: Path, *, seq_len: int, files: ExitStack) -> None:
        folder.mkdir()
        self.arrays = {
            name: GrowingArray(folder / f"all__{name}.npy", shape, dtype, files)
            for name, shape, dtype in (
                (INPUTS, (seq_len,), np.uint8),
                (LABELS, (seq_len,), np.uint8),
                (IDENTIFIERS, (), np.int32),
                ("puzzle_indices", (), np.int32),
                ("group_indices", (), np.int32),
            )
        }
        self.arrays["puzzle_indices"].append(np.zeros(1))
        self.arrays["group_indices"].append(np.zeros(1))

    def add_group(
        self,
        inputs: Int[np.ndarray, "examples seq_len"],
        labels: Int[np.ndarray, "examples seq_len"],
        *,
        sizes: Int[np.ndarray, " puzzles"],
        identifiers: Int[np.ndarray, " puzzles"],
    ) -> None:
        """Appends a group.

        Args:
            inputs: Tokens of the questions.
            labels: Tokens of the answers.
            sizes: Examples of each puzzle.
            identifiers: Identifier of each puzzle.
        """
        self.arrays["puzzle_indices"].append(self.arrays[INPUTS].rows + np.cumsum(sizes))
        self.arrays[INPUTS].append(inputs)
        self.arrays[LABELS].append(labels)
        self.arrays[IDENTIFIERS].append(identifiers)
        self.arrays["group_indices"].append(np.array([self.arrays[IDENTIFIERS].rows]))


class PuzzleFolder:
    """Set of puzzles that is being written; `write_puzzles` makes it."""

    def __init__(self, partial: Path, files: ExitStack, *, seq_len: int, vocab_size: int) -> None:
        self.partial = partial
        self.identifiers = 1
        self._sizes = {"seq_len": seq_len, "vocab_size": vocab_size}
        self._names = files.enter_context(open(partial / NAMES, "w", encoding="utf-8"))  # noqa: SIM115  (likewise)
        self._names.write(f'["{BLANK}"')
        self.splits = {name: SplitFiles(partial / name, seq_len=seq_len, files=files) for name in SPLITS}

    def name(self, text: str) -> int:
        """Writes the name of the next identifier and returns its number. Names are not kept in memory."""
        self._names.write(f", {json.dumps(text)}")
        self.identifiers += 1
        return self.identifiers - 1

    def finish(self) -> dict[str, Any]:
        """Completes all files, and returns the sizes of the set."""
        self._names.write("]")
        counts = {}
        for name, split in self.splits.items():
            counts[name] = {
                "groups": split.arrays["group_indices"].rows - 1,
                "puzzles": split.arrays[IDENTIFIERS].rows,
                "examples": split.arrays[INPUTS].rows,
            }
            if not counts[name]["examples"]:
                raise DataError(f"no puzzle is left for the {name} split: nothing was kept")
            for array in split.arrays.values():
                array.finish()
            about = {
                **self._sizes,
                "pad_id": 0,
                "ignore_label_id": 0,
                "blank_identifier_id": 0,
                "num_puzzle_identifiers": self.identifiers,
                "total_groups": counts[name]["groups"],
                "mean_puzzle_examples": counts[name]["examples"] / counts[name]["puzzles"],
                "total_puzzles": counts[name]["puzzles"],
                "sets": ["all"],
            }
            (self.partial / name / "dataset.json").write_text(json.dumps(about), "utf-8")
        return {**counts, **self._sizes, "identifiers": self.identifiers}


def write_puzzles(
    options: SudokuOptions | MazeOptions | ArcOptions,
    fill: Callable[[PuzzleFolder], None],
    *,
    seq_len: int,
    vocab_size: int,
    needed_bytes: int,
) -> dict[str, Any]:
    """Writes a set, and returns its sizes, time and bytes: what `prepare --json` prints.

    Args:
        options: Options with the folder's name, `out`.
        fill: Adds all groups to the set.
        seq_len: Tokens of a question.
        vocab_size: Tokens, with that of padding.
        needed_bytes: Upper bound of its size.

    Raises:
        DataError: `out` exists, or `needed_bytes` are not free.
        StoppedError: The disk became full.
    """
    started = time.perf_counter()
    out = Path(options.out).expanduser().absolute()
    if out.exists():
        raise DataError(f"{out} is there already: name another --out, or remove it")

    def make(partial: Path) -> dict[str, Any]:
        if needed_bytes > free_bytes(out):
            raise DataError(
                f"the data set takes up to {format_bytes(needed_bytes)}, and {format_bytes(free_bytes(out))} are free"
                f" at {out.parent}: ask for fewer puzzles or augmentations, or name another disk"
            )
        with ExitStack() as files:
            folder = PuzzleFolder(partial, files, seq_len=seq_len, vocab_size=vocab_size)
            fill(folder)
            return folder.finish()

    made_with = facts_of([], **{name: value for name, value in asdict(options).items() if name != "out"})
    counts = made(out, made_with, make).counts
    seconds = time.perf_counter() - started
    examples = sum(counts[name]["examples"] for name in SPLITS)
    return {
        "path": str(out),
        "examples": examples,
        "seconds": seconds,
        "examples_per_second": examples / seconds,
        "bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        **counts,
    }


def write_boards(
    options: SudokuOptions | MazeOptions,
    groups: Iterable[Group],
    *,
    vocab_size: int,
    trains: int,
    tests: int,
    copies: int,
    test_copies: int = 1,
) -> dict[str, Any]:
    """Writes a set whose puzzles have no identifiers, and returns what `write_puzzles` does.

    Args:
        options: Options with the folder's name, `out`.
        groups: Groups in the order in which they are written, made while they are.
        vocab_size: Tokens, with that of padding.
        trains: Groups to train on.
        tests: Groups to test on.
        copies: Puzzles of a group to train on, at most.
        test_copies: Puzzles of a group to test on.
    """
    cells, progress = options.size**2, Spoken("puzzles")

    def fill(folder: PuzzleFolder) -> None:
        for number, (split, inputs, labels) in enumerate(groups, 1):
            rows = len(inputs)
            one_each, blank = np.ones(rows, np.int32), np.zeros(rows, np.int32)
            tokens = (inputs.reshape(rows, cells), labels.reshape(rows, cells))
            folder.splits[split].add_group(*tokens, sizes=one_each, identifiers=blank)
            progress(number, trains + tests)

    needed = (trains * copies + tests * test_copies) * (2 * cells + ROW_BYTES) + FIXED_BYTES
    return write_puzzles(options, fill, seq_len=cells, vocab_size=vocab_size, needed_bytes=needed)
