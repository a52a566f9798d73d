"""Reads boards from CSV files in the form `source,question,answer,rating`, and chooses training and test boards.

The files are local, or in a data set on the Hugging Face hub. Rows are streamed as often as they are needed, and not
kept in memory: a published table has 3.8 million rows.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, UInt8, UInt64

from plimsoll.data import in_short
from plimsoll.data.hub import looks_like_hub_id
from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.dataset import SPLITS

Split = Literal["train", "test"]
Board = UInt8[np.ndarray, "side side"]
Boards = UInt8[np.ndarray, "boards side side"]
Which = Bool[np.ndarray, " boards"]
Marks = UInt64[np.ndarray, " boards"]
"""64-bit hash of each board. Boards with equal hashes never are in different splits."""

TOGETHER = 4096
"""Number of rows that are read at a time."""


class BoardTable:
    """Questions and answers in CSV files, each checked when it is read."""

    def __init__(
        self,
        source: str,
        *,
        side: int,
        codes: Mapping[str, int],
        are_solved: Callable[[Boards, Boards], Which],
    ) -> None:
        """Finds the files.

        Args:
            source: A CSV file, a folder with train.csv and perhaps test.csv, or the id of a data set on the hub.
            side: Number of rows of a board.
            codes: Number for each character of a board.
            are_solved: Function of questions and answers that returns True for each answer that solves its question.
        """
        self.files = _files(source)
        self.side = side
        self.codes = codes
        self.are_solved = are_solved

    def boards(self, split: Split) -> Iterator[tuple[Boards, Boards]]:
        """Yields questions and answers, `TOGETHER` at a time."""
        path = self.files[split]
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                if not {"question", "answer"} <= {*(reader.fieldnames or ())}:
                    raise DataError(
                        f"{path} has no columns question and answer: put source,question,answer,rating on its first"
                        " line"
                    )
                number = 1
                while rows := list(islice(reader, TOGETHER)):
                    yield self._boards_of(rows, path, number)
                    number += len(rows)
        except (csv.Error, UnicodeDecodeError) as problem:
            raise DataError(f"{path} is no CSV file that can be read ({problem}). Save it as text in UTF-8") from None

    def _boards_of(self, rows: list[dict[str, str]], path: Path, first: int) -> tuple[Boards, Boards]:
        """Returns questions and answers of CSV rows. `first` is the first row's number for error messages."""
        questions, answers = (
            np.stack([self._board(row[column], f"{path}, row {number:,}") for number, row in enumerate(rows, first)])
            for column in ("question", "answer")
        )
        wrong = np.flatnonzero(~self.are_solved(questions, answers))
        if len(wrong):
            raise DataError(
                f"{path}, row {first + wrong[0]:,}: the answer does not solve the question. Mend the row, or leave it"
                " out"
            )
        return questions, answers

    def _board(self, text: str | None, place: str) -> Board:
        """Returns one board as codes; `place` names the file and the row in error messages."""
        text = text or ""
        if len(text) != self.side**2 or not self.codes.keys() >= {*text}:
            raise DataError(
                f"{place}: a board has {len(text)} characters out of {''.join(sorted({*text}))!r}, and one of --size"
                f" {self.side} has {self.side**2} out of {''.join(self.codes)!r}"
            )
        codes = bytes([self.codes[character] for character in text])
        return np.frombuffer(codes, np.uint8).reshape(self.side, self.side)

    def chosen(self, split: Split, which: Which) -> Iterator[tuple[Board, Board]]:
        """Yields question and answer of each row for which the mask `which` is True."""
        first = 0
        for questions, answers in self.boards(split):
            chosen = which[first : first + len(questions)]
            first += len(questions)
            yield from zip(questions[chosen], answers[chosen], strict=True)


def _files(source: str) -> dict[Split, Path]:
    """Returns the CSV file of each split."""
    path = Path(source).expanduser()
    if path.is_file():
        return {"train": path}
    if path.is_dir():
        possible: dict[Split, Path] = {split: path / f"{split}.csv" for split in SPLITS}
        files: dict[Split, Path] = {split: file for split, file in possible.items() if file.is_file()}
        if "train" not in files:
            raise DataError(f"--source {source} is a folder without a train.csv: name a CSV file, or put it there")
        return files
    if source.endswith(".csv") or not looks_like_hub_id(source):
        raise DataError(
            f"--source {source} is neither an existing file or folder nor a Hugging Face id like"
            " sapientinc/sudoku-extreme"
        )

    # Plain files, because a reader that infers types would parse an answer of 81 digits as a number.
    import huggingface_hub

    try:
        return {
            split: Path(huggingface_hub.hf_hub_download(source, f"{split}.csv", repo_type="dataset"))
            for split in SPLITS
        }
    except Exception as problem:  # network errors too, for which the library has many classes
        raise DataError(
            f"data set {source} cannot be read ({in_short(problem, kind=True)}). Check the id, that it has a train.csv"
            " and a test.csv, and that huggingface.co can be reached; a local CSV file can be named by its path"
        ) from problem


@dataclass(frozen=True)
class Choice:
    """Masks of the rows for training and for testing."""

    to_train: Which
    """True for rows of the train split to train on."""
    to_test: Which
    """True for rows to test on, which are in the split `test_split`."""
    test_split: Split
    held_out: Marks
    """Hashes of held-out boards. No training row has one of them."""

    @property
    def count(self) -> int:
        """Number of chosen rows."""
        return int(self.to_train.sum() + self.to_test.sum())


def choose(
    table: BoardTable,
    *,
    mark: Callable[[Boards, Boards], Marks],
    train_size: int,
    test_size: int | None,
    random: np.random.Generator,
) -> Choice:
    """Returns the rows of a table to train on and to test on, chosen at random.

    Args:
        table: Table with a train split, and perhaps a test split.
        mark: Function of questions and answers that returns a hash of each board.
        train_size: Rows to train on, at most.
        test_size: Rows of the test split to test on; without a test split, hashes to hold out. Default: the whole
            split, or a tenth of the hashes and at most 1,000.
        random: Source of random numbers.
    """
    marks = {
        split: np.concatenate([np.empty(0, np.uint64), *(mark(*boards) for boards in table.boards(split))])
        for split in table.files
    }

    # Bounds of the test size. Without a test split, at least one hash is left for training.
    has_test = "test" in marks
    known = marks["test"] if has_test else np.unique(marks["train"])
    most = len(known) if has_test else len(known) - 1
    usual = most if has_test else min(1000, len(known) // 10)
    count = usual if test_size is None else test_size
    if not 1 <= count <= most:
        raise DataError(
            f"{count:,} puzzles are to test on, and the {len(known):,} different ones of {table.files} allow for 1 to"
            f" {most:,}: set --test-size, or add rows (a tenth of a table without a test.csv is held out)"
        )

    # Choose test rows first: no training row may have their hashes.
    if has_test:
        held_out = known
        to_test = _some(np.ones(len(known), bool), count, random)
    else:
        held_out = random.choice(known, count, replace=False)
        to_test = np.isin(marks["train"], held_out)
    to_train = _some(~np.isin(marks["train"], held_out), train_size, random)
    return Choice(to_train, to_test, "test" if has_test else "train", held_out)


def _some(among: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Returns a mask of `count` random rows of the mask `among`, or of all if there are fewer."""
    chosen = np.zeros(len(among), bool)
    chosen[random.permutation(np.flatnonzero(among))[:count]] = True
    return chosen


def fingerprints(boards: Boards) -> Marks:
    """Returns a 64-bit hash per board. Two of a million boards have equal hashes with a probability below 10^-7."""
    flat = boards.reshape(len(boards), -1).astype(np.uint64)
    return flat @ np.random.default_rng(0).integers(0, 2**64, flat.shape[1], np.uint64)
