"""Questions and answers as strings: CSV files in the form `source,question,answer,rating`, local or on the hub.

Rows are streamed, as often as they are needed, and not kept in memory.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from plimsoll.data import in_short
from plimsoll.data.hub import looks_like_hub_id
from plimsoll.errors import DataError
from plimsoll.recipes.puzzles.dataset import SPLITS


class Row(NamedTuple):
    place: str
    """File and number of the row, for messages."""
    question: str
    answer: str


Table = dict[str, Path]
"""CSV file of each split: train, and perhaps test."""


def find_table(source: str) -> Table:
    """Returns the table that `--source` names."""
    path = Path(source).expanduser()
    if path.is_file():
        return {"train": path}
    if path.is_dir():
        files = {name: file for name in SPLITS if (file := path / f"{name}.csv").is_file()}
        if "train" not in files:
            raise DataError(f"--source {source} is a folder without a train.csv: name a CSV file, or put it there")
        return files
    if source.endswith(".csv") or not looks_like_hub_id(source):
        raise DataError(
            f"--source {source} is neither a file nor a folder that is there, nor a Hugging Face id like"
            " sapientinc/sudoku-extreme"
        )
    return _downloaded(source)


def rows_of(path: Path) -> Iterator[Row]:
    """Yields all rows of a file; their numbers begin with 1."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            header = reader.fieldnames or []
            if not {"question", "answer"} <= set(header):
                raise DataError(
                    f"{path} has no header with the columns question and answer: it begins with"
                    f" {','.join(header)[:60]!r}. Put source,question,answer,rating on its first line"
                )
            for number, row in enumerate(reader, 1):
                place = f"{path}, row {number:,} (line {reader.line_num:,})"
                if row["question"] is None or row["answer"] is None:
                    raise DataError(f"{place} has fewer columns than the header: the row is not whole")
                yield Row(place, row["question"], row["answer"])
        except (csv.Error, UnicodeDecodeError) as problem:
            raise DataError(
                f"{path} is no CSV file that can be read, after line {reader.line_num:,}: {problem}. Save it as text"
                " in UTF-8"
            ) from None


def _downloaded(name: str) -> Table:
    """Returns the CSV files of a data set on the hub.

    Files, because a reader that guesses types would take an answer of 81 digits for a number.
    """
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    files = {}
    for split in SPLITS:
        try:
            files[split] = Path(huggingface_hub.hf_hub_download(name, f"{split}.csv", repo_type="dataset"))
        except Exception as problem:  # of the network too: the library has classes of its own for each
            absent = isinstance(problem, EntryNotFoundError) and not isinstance(problem, LocalEntryNotFoundError)
            if absent and split != "train":
                continue
            raise DataError(
                f"data set {name} cannot be read ({in_short(problem, kind=True)}). Check the id, that it has a"
                " train.csv, and that huggingface.co can be reached; a CSV file here can be named by its path"
            ) from problem
    return files


def cells(
    row: Row,
    field: Literal["question", "answer"],
    codes: Mapping[str, int],
    *,
    side: int,
    sides: Container[int],
    written: str,
) -> bytes:
    """Returns the codes of the characters of a square, which is written row after row, a byte each.

    Args:
        row: Row of a table.
        field: Column of it.
        codes: Code of each character.
        side: Rows of the square; another length is refused.
        sides: Numbers of rows that --size takes, one of which may be the right one.
        written: How such a square is written, for the refusal of a character without a code.
    """
    text = row.question if field == "question" else row.answer
    if len(text) != side**2:
        other = math.isqrt(len(text))
        hint = f"; with --size {other} it would be one of {other}x{other}"
        raise DataError(
            f"{row.place}: the {field} has {len(text)} characters, and one of {side}x{side} has"
            f" {side**2}{hint if other**2 == len(text) and other in sides else ''}"
        )
    if unknown := set(text) - codes.keys():
        number = min(text.index(character) for character in unknown)
        raise DataError(f"{row.place}: character {number + 1} of the {field} is {text[number]!r}, and {written}")
    return bytes([codes[character] for character in text])
