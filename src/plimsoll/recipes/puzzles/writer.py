"""Writer of a data set of puzzles: group by group, in bounded memory, and complete or not at all.

It grows in `NAME.partial`, which is renamed after its dataset.json files were written last. The rest of a killed
process is removed by the next one: the same seed makes the same set.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from jaxtyping import Int

from plimsoll.errors import DataError, StoppedError
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS, SPLITS
from plimsoll.units import format_bytes

Progress = Callable[[int, int], None]
"""Function that is called with the number of groups written, and of all groups."""

BLANK = "<blank>"
"""Name of identifier 0."""
_LOCK = ".lock"


class GrowingArray:
    """`.npy` file that rows are appended to. NumPy leaves room in the header for the number of rows."""

    def __init__(self, file: IO[bytes], shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self._file, self._shape, self._dtype, self.rows = file, shape, np.dtype(dtype), 0
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

    def __init__(self, folder: Path, *, seq_len: int, files: contextlib.ExitStack) -> None:
        folder.mkdir()

        def made(name: str, *shape: int, dtype: type[np.generic] = np.int32) -> GrowingArray:
            return GrowingArray(files.enter_context(open(folder / f"all__{name}.npy", "wb")), shape, dtype)

        self.inputs, self.labels = made(INPUTS, seq_len, dtype=np.uint8), made(LABELS, seq_len, dtype=np.uint8)
        self.identifiers = made(IDENTIFIERS)
        self.puzzle_offsets, self.group_offsets = made("puzzle_indices"), made("group_indices")
        self.all = [self.inputs, self.labels, self.identifiers, self.puzzle_offsets, self.group_offsets]
        for offsets in (self.puzzle_offsets, self.group_offsets):
            offsets.append(np.zeros(1))

    def add_group(
        self,
        inputs: Int[np.ndarray, "examples seq_len"],
        labels: Int[np.ndarray, "examples seq_len"],
        *,
        sizes: Int[np.ndarray, " puzzles"] | None = None,
        identifiers: Int[np.ndarray, " puzzles"] | None = None,
    ) -> None:
        """Appends a group.

        Args:
            inputs: Tokens of the questions.
            labels: Tokens of the answers.
            sizes: Examples of each puzzle; default one.
            identifiers: Identifier of each puzzle; default the blank one.
        """
        sizes = np.ones(len(inputs), np.int32) if sizes is None else sizes
        self.puzzle_offsets.append(self.inputs.rows + np.cumsum(sizes))
        self.inputs.append(inputs)
        self.labels.append(labels)
        self.identifiers.append(np.zeros(len(sizes), np.int32) if identifiers is None else identifiers)
        self.group_offsets.append(np.array([self.identifiers.rows]))

    @property
    def counts(self) -> dict[str, int]:
        return {
            "groups": self.group_offsets.rows - 1,
            "puzzles": self.identifiers.rows,
            "examples": self.inputs.rows,
        }


class PuzzleFolder:
    """Folder that is being written, as a context.

    `needed_bytes` is an upper bound that must be free before the first row.
    """

    def __init__(self, out: Path, *, seq_len: int, vocab_size: int, needed_bytes: int) -> None:
        self.out = out.expanduser().absolute()
        self.partial = self.out.with_name(f"{self.out.name}.partial")
        self._sizes, self._needed = {"seq_len": seq_len, "vocab_size": vocab_size}, needed_bytes
        self.identifiers = 1

    def __enter__(self) -> PuzzleFolder:
        self._started = time.perf_counter()
        if self.out.exists():
            raise DataError(f"{self.out} is there already: name another --out, or remove it")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.out.parent).free
        if self._needed > free:
            raise DataError(
                f"the data set takes up to {format_bytes(self._needed)}, and {format_bytes(free)} are free at"
                f" {self.out.parent}: ask for fewer puzzles or augmentations, or name another disk"
            )
        self._lock, self._files = _locked(self.partial), contextlib.ExitStack()
        try:
            seq_len = self._sizes["seq_len"]
            self.train = SplitFiles(self.partial / "train", seq_len=seq_len, files=self._files)
            self.test = SplitFiles(self.partial / "test", seq_len=seq_len, files=self._files)
            self._names = self._files.enter_context(open(self.partial / "identifiers.json", "w", encoding="utf-8"))
            self._names.write(f'["{BLANK}"')
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, _: TracebackType | None
    ) -> None:
        self._clear()
        if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
            free = format_bytes(shutil.disk_usage(self.out.parent).free)
            raise StoppedError(
                f"the disk became full while {self.out} was written ({free} free at {self.out.parent}): make room, or"
                " name an --out on another disk. Nothing was kept"
            ) from None

    def _clear(self) -> None:
        """Removes what is left of a set that was not finished."""
        with contextlib.suppress(OSError):  # of a full disk: what the files still wanted to write
            self._files.close()
        shutil.rmtree(self.partial, ignore_errors=True)
        self._lock.close()

    def name(self, text: str) -> int:
        """Writes the name of the next identifier and returns its number. Names are not kept in memory."""
        self._names.write(f", {json.dumps(text)}")
        self.identifiers += 1
        return self.identifiers - 1

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file in the folder."""
        (self.partial / name).write_text(json.dumps(value), "utf-8")

    def finish(self, made_with: Mapping[str, Any]) -> dict[str, Any]:
        """Renames the complete set, and returns its sizes, time and bytes: what `prepare --json` prints."""
        splits = dict(zip(SPLITS, (self.train, self.test), strict=True))
        for name, split in splits.items():
            if not split.inputs.rows:
                raise DataError(f"no puzzle is left for the {name} split of {self.out}: nothing was kept")
        self._names.write("]")
        self.write("made_with.json", dict(made_with))
        for array in (*self.train.all, *self.test.all):
            array.finish()
        self._files.close()
        for name, split in splits.items():
            self.write(
                f"{name}/dataset.json",
                {
                    **self._sizes,
                    "pad_id": 0,
                    "ignore_label_id": 0,
                    "blank_identifier_id": 0,
                    "num_puzzle_identifiers": self.identifiers,
                    "total_groups": split.counts["groups"],
                    "mean_puzzle_examples": split.counts["examples"] / split.counts["puzzles"],
                    "total_puzzles": split.counts["puzzles"],
                    "sets": ["all"],
                },
            )
        size = sum(path.stat().st_size for path in self.partial.rglob("*") if path.is_file())
        (self.partial / _LOCK).unlink()
        self.partial.rename(self.out)
        seconds = time.perf_counter() - self._started
        examples = sum(split.inputs.rows for split in splits.values())
        return {
            "path": str(self.out),
            "examples": examples,
            "seconds": seconds,
            "examples_per_second": examples / seconds,
            "bytes": size,
            **{name: split.counts for name, split in splits.items()},
            **self._sizes,
            "identifiers": self.identifiers,
        }


def _locked(partial: Path) -> IO[bytes]:
    """Makes an empty folder `partial` and returns the lock in it, which is held as long as the folder is written."""
    if partial.exists():
        if not (partial / _LOCK).exists():
            raise DataError(f"{partial} is there, and no half-made data set: name another --out, or remove it")
        with open(partial / _LOCK, "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(f"another process is writing {partial}: wait for it, or name another --out") from None
        shutil.rmtree(partial)
    partial.mkdir()
    lock = open(partial / _LOCK, "wb")  # noqa: SIM115  (held as long as the folder grows)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock
