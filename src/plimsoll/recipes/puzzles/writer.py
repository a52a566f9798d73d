"""Writer of a data set of puzzles: group by group, in bounded memory, and complete or not at all.

It grows in `NAME.partial`, which is renamed after its dataset.json files were written last. The rest of a killed
process is removed by the next one: the same seed makes the same set.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from plimsoll.data.disk import free_bytes, is_full, locked
from plimsoll.data.progress import Spoken
from plimsoll.errors import DataError, StoppedError
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
        self._file.flush()
        os.fsync(self._file.fileno())

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
    """Set of puzzles that is being written; `puzzle_folder` makes it."""

    def __init__(self, out: Path, partial: Path, files: ExitStack, *, seq_len: int, vocab_size: int) -> None:
        self.partial, self.identifiers = partial, 1
        self._out, self._files, self._started = out, files, time.perf_counter()
        self._sizes = {"seq_len": seq_len, "vocab_size": vocab_size}
        self._names = files.enter_context(open(partial / NAMES, "w", encoding="utf-8"))  # noqa: SIM115  (likewise)
        self._names.write(f'["{BLANK}"')
        self.splits = {name: SplitFiles(partial / name, seq_len=seq_len, files=files) for name in SPLITS}

    def name(self, text: str) -> int:
        """Writes the name of the next identifier and returns its number. Names are not kept in memory."""
        self._names.write(f", {json.dumps(text)}")
        self.identifiers += 1
        return self.identifiers - 1

    def finish(self, options: SudokuOptions | MazeOptions | ArcOptions) -> dict[str, Any]:
        """Renames the complete set, and returns its sizes, time and bytes: what `prepare --json` prints."""
        counts = {
            name: {
                "groups": split.arrays["group_indices"].rows - 1,
                "puzzles": split.arrays[IDENTIFIERS].rows,
                "examples": split.arrays[INPUTS].rows,
            }
            for name, split in self.splits.items()
        }
        for name, split in counts.items():
            if not split["examples"]:
                raise DataError(f"no puzzle is left for the {name} split of {self._out}: nothing was kept")
        self._names.write("]")
        made_with = {name: value for name, value in asdict(options).items() if name != "out"}
        (self.partial / "made_with.json").write_text(json.dumps(made_with), "utf-8")
        for split in self.splits.values():
            for array in split.arrays.values():
                array.finish()
        self._files.close()
        for name, split in counts.items():
            about = {
                **self._sizes,
                "pad_id": 0,
                "ignore_label_id": 0,
                "blank_identifier_id": 0,
                "num_puzzle_identifiers": self.identifiers,
                "total_groups": split["groups"],
                "mean_puzzle_examples": split["examples"] / split["puzzles"],
                "total_puzzles": split["puzzles"],
                "sets": ["all"],
            }
            (self.partial / name / "dataset.json").write_text(json.dumps(about), "utf-8")
        size = sum(path.stat().st_size for path in self.partial.rglob("*") if path.is_file())
        self.partial.rename(self._out)
        seconds = time.perf_counter() - self._started
        examples = sum(split["examples"] for split in counts.values())
        return {
            "path": str(self._out),
            "examples": examples,
            "seconds": seconds,
            "examples_per_second": examples / seconds,
            "bytes": size,
            **counts,
            **self._sizes,
            "identifiers": self.identifiers,
        }


@contextmanager
def puzzle_folder(out: str, *, seq_len: int, vocab_size: int, needed_bytes: int) -> Iterator[PuzzleFolder]:
    """Yields a set that grows next to `out`; what was not finished is removed at the end.

    Raises:
        DataError: `out` exists or is being written, or `needed_bytes`, an upper bound, are not free.
        StoppedError: The disk became full.
    """
    path = Path(out).expanduser().absolute()
    if path.exists():
        raise DataError(f"{path} is there already: name another --out, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    if needed_bytes > free_bytes(path):
        raise DataError(
            f"the data set takes up to {format_bytes(needed_bytes)}, and {format_bytes(free_bytes(path))} are free at"
            f" {path.parent}: ask for fewer puzzles or augmentations, or name another disk"
        )
    partial = path.with_name(f"{path.name}.partial")
    with locked(path):
        if partial.exists() and not (partial / NAMES).exists():
            raise DataError(f"{partial} is there, and no half-made data set: name another --out, or remove it")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            with ExitStack() as files:
                yield PuzzleFolder(path, partial, files, seq_len=seq_len, vocab_size=vocab_size)
        except OSError as problem:
            if not is_full(problem):
                raise
            raise StoppedError(
                f"the disk became full while {path} was written ({format_bytes(free_bytes(path))} free at"
                f" {path.parent}): make room, or name an --out on another disk. Nothing was kept"
            ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)


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
    """Writes a set whose puzzles have no identifiers, and returns what `PuzzleFolder.finish` does.

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
    needed = (trains * copies + tests * test_copies) * (2 * cells + ROW_BYTES) + FIXED_BYTES
    with puzzle_folder(options.out, seq_len=cells, vocab_size=vocab_size, needed_bytes=needed) as folder:
        for number, (split, inputs, labels) in enumerate(groups, 1):
            rows = len(inputs)
            one_each, blank = np.ones(rows, np.int32), np.zeros(rows, np.int32)
            tokens = (inputs.reshape(rows, cells), labels.reshape(rows, cells))
            folder.splits[split].add_group(*tokens, sizes=one_each, identifiers=blank)
            progress(number, trains + tests)
        return folder.finish(options)
