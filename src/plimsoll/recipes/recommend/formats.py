"""Files of interactions, line by line: the form of a file, and its rows as (line, user, item, time, rating).

Nothing is kept in memory; an error names its line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, get_args

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.prepare_options import Form, RecommendSet

LOOKED_AT = 1000
"""Lines that the form is detected from."""
DELIMITERS = ",\t;"
CHOICES = f"Say which it is with --format {', '.join(get_args(Form))}"
MOVIELENS = {"user": "userId", "item": "movieId", "time": "timestamp", "rating": "rating"}
"""Columns of MovieLens' ratings.csv."""


class Row(NamedTuple):
    line: int
    """Number of the line, from 1."""
    user: str
    item: str
    time: float
    """Time in seconds, or in whatever unit the file has; 0 if it has none."""
    rating: float
    """Rating; 0 if none was asked for."""


def form_of(options: RecommendSet, path: Path) -> Form:
    """Returns the form that was asked for, or that the first thousand lines have."""
    if options.format is not None or options.user_column is not None:
        return options.format or "csv"
    with opened(path, "movielens-dat") as file:  # any bytes can be read so
        lines = list(islice((line for line in file if line.strip()), LOOKED_AT))
    if not lines:
        raise DataError(f"{path} is empty: it has no interactions")
    lines[0] = lines[0].removeprefix("\u00ef\u00bb\u00bf")  # the mark at the beginning of UTF-8, read as Latin-1
    if all(line.count("::") >= 2 for line in lines):
        return "movielens-dat"
    header = header_of(lines[0])
    if {MOVIELENS["user"], MOVIELENS["item"]} <= set(header):
        return "movielens-csv"
    words = [line.split() for line in lines]
    if len(header) > 1 and "," in lines[0]:
        raise DataError(
            f"{path} looks like a CSV file with the columns {', '.join(header)[:200]}: say which of them are the users"
            " and the items with --user-column and --item-column, and with --time-column which is the time"
        )
    if all(len(fields) == 2 for fields in words):
        return "pairs"
    if all(len(fields) >= 2 for fields in words) and len({fields[0] for fields in words}) == len(words):
        return "sequences"
    raise DataError(
        f"{path} is of no form that its first {len(lines):,} lines tell for sure; it begins with"
        f" {lines[0].strip()[:60]!r}. {CHOICES}; csv needs --user-column and --item-column too"
    )


def has_times(options: RecommendSet, form: Form) -> bool:
    return form in ("movielens-csv", "movielens-dat") or options.time_column is not None


def rows(options: RecommendSet, path: Path, form: Form) -> Iterator[Row]:
    """Yields all rows of the file in its order, with low ratings too."""
    if options.min_rating is not None and form in ("pairs", "sequences"):
        raise DataError(f"--min-rating {options.min_rating:g}: {path} has no ratings, being read as --format {form}")
    if form == "movielens-csv":
        return _table(path, MOVIELENS if options.min_rating is not None else MOVIELENS | {"rating": None})
    if form == "csv":
        columns = {"user": options.user_column, "item": options.item_column, "time": options.time_column}
        return _table(path, columns | {"rating": options.rating_column})
    return {"movielens-dat": _dat, "pairs": _pairs, "sequences": _sequences}[form](path)


def header_of(line: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter_of(line)))]


def delimiter_of(line: str) -> str:
    return max(DELIMITERS, key=line.count)


def _table(path: Path, columns: Mapping[str, str | None]) -> Iterator[Row]:
    with opened(path, "csv") as file:
        first = file.readline()
        header = header_of(first)
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter_of(first))
        next(reader, None)
        user, item, time, rating = (_place(path, header, columns[name]) for name in ("user", "item", "time", "rating"))
        assert user is not None
        assert item is not None
        clock = _Clock(path)
        try:
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise _broken(path, reader.line_num, f"{len(fields)} columns, and the header {len(header)}")
                yield Row(
                    reader.line_num,
                    _word(fields[user], path, reader.line_num),
                    _word(fields[item], path, reader.line_num),
                    0.0 if time is None else clock.read(fields[time], reader.line_num),
                    0.0 if rating is None else _number(fields[rating], "rating", path, reader.line_num),
                )
        except csv.Error as problem:
            raise DataError(f"{path} is no CSV file that can be read, at line {reader.line_num:,}: {problem}") from None


def _place(path: Path, header: Sequence[str], column: str | None) -> int | None:
    if column is None:
        return None
    if header.count(column) > 1:
        raise DataError(
            f"{path} has {header.count(column)} columns {column!r}, and which of them is meant cannot be told: rename"
            " the others"
        )
    if column not in header:
        raise DataError(
            f"{path} has no column {column!r}; its first line has {', '.join(header)[:200] or 'nothing'}. Name another"
            " one of them (--user-column, --item-column, --time-column, --rating-column), or say another --format"
        )
    return header.index(column)


def _dat(path: Path) -> Iterator[Row]:
    clock = _Clock(path)
    for number, line in _lines(path, "movielens-dat"):
        fields = line.split("::")
        if len(fields) != 4:
            raise _broken(path, number, f"{len(fields)} fields, where user::item::rating::time has 4")
        user, item = _word(fields[0], path, number), _word(fields[1], path, number)
        yield Row(number, user, item, clock.read(fields[3], number), _number(fields[2], "rating", path, number))


def _pairs(path: Path) -> Iterator[Row]:
    for number, line in _lines(path, "pairs"):
        fields = line.split()
        if len(fields) != 2:
            raise _broken(path, number, f"{len(fields)} words, where a user and an item are 2")
        yield Row(number, fields[0], fields[1], 0.0, 0.0)


def _sequences(path: Path) -> Iterator[Row]:
    line_of: dict[str, int] = {}
    for number, line in _lines(path, "sequences"):
        user, *items = line.split()
        if user in line_of:
            raise _broken(path, number, f"the user {user}, whose items stand on line {line_of[user]:,} already")
        line_of[user] = number
        yield from (Row(number, user, item, 0.0, 0.0) for item in items)


def _lines(path: Path, form: Form) -> Iterator[tuple[int, str]]:
    with opened(path, form) as file:
        for number, line in enumerate(file, 1):
            if stripped := line.strip():
                yield number, stripped


@contextmanager
def opened(path: Path, form: Form, *, option: str = "--interactions") -> Iterator[IO[str]]:
    """Opens the file: MovieLens' .dat files are in Latin-1, everything else is in UTF-8."""
    try:
        with open(path, newline="", encoding="latin-1" if form == "movielens-dat" else "utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is no text in UTF-8 ({problem.reason}): save it as that") from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}. Name a file with {option}") from None


def _word(text: str, path: Path, line: int) -> str:
    if word := text.strip():
        return word
    raise _broken(path, line, "an empty user or item")


def _number(text: str, what: str, path: Path, line: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _broken(path, line, f"the {what} {text.strip()!r}, which is no number")
    return number


class _Clock:
    """Parser of the times of a file. They must all be numbers, or all dates: a mixture has no order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began: tuple[bool, int] | None = None
        """First time that was read: true if it was a date, and its line."""

    def read(self, text: str, line: int) -> float:
        time, is_date = self._read(text, line)
        self.began = self.began or (is_date, line)
        if is_date is not self.began[0]:
            kinds = ("a number", "a date")
            raise _broken(
                self.path,
                line,
                f"the time {text.strip()!r}, {kinds[is_date]}, where line {self.began[1]:,} has {kinds[not is_date]}",
            )
        return time

    def _read(self, text: str, line: int) -> tuple[float, bool]:
        try:
            time, is_date = float(text), False
        except ValueError:
            try:
                date = datetime.fromisoformat(text.strip())
            except ValueError:
                raise _broken(self.path, line, f"the time {text.strip()!r}, which is no number and no date") from None
            time, is_date = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), True
        if not math.isfinite(time):
            raise _broken(self.path, line, f"the time {text.strip()!r}, which is no number")
        return time, is_date


def _broken(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{path}, line {line:,}, has {what}. Correct the line, or say another --format")
