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


Record = tuple[int, str, str, str | None, str | None]
"""Line, user, item, time and rating as they stand in a file; None for what it does not have, or is not asked for."""


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
    """Returns the form of the options, or that of the first thousand lines."""
    if options.format is not None or options.user_column is not None:
        return options.format or "csv"
    with opened(path, "movielens-dat") as file:  # any bytes can be read so
        lines = list(islice((line for line in file if line.strip()), LOOKED_AT))
    if not lines:
        raise DataError(f"{path} is empty: it has no interactions")
    lines[0] = lines[0].removeprefix("\u00ef\u00bb\u00bf")  # the mark at the beginning of UTF-8, read as Latin-1
    if all(line.count("::") >= 2 for line in lines):
        return "movielens-dat"
    header, _ = header_of(lines[0])
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


def rows(options: RecommendSet, path: Path, form: Form) -> Iterator[Row]:
    """Yields all rows of the file in its order, with low ratings too."""
    if options.min_rating is not None and form in ("pairs", "sequences"):
        raise DataError(f"--min-rating {options.min_rating:g}: {path} has no ratings, being read as --format {form}")
    for line, user, item, time, rating in _records(options, path, form):
        if not (user.strip() and item.strip()):
            raise _broken(path, line, "an empty user or item")
        seconds = 0.0 if time is None else _number(path, line, "time", time)
        stars = 0.0 if rating is None else _number(path, line, "rating", rating)
        yield Row(line, user.strip(), item.strip(), seconds, stars)


def _number(path: Path, line: int, name: str, text: str) -> float:
    """Returns a time or a rating; of a date, its seconds."""
    try:
        number = float(text)
    except ValueError:
        number = _seconds(text) if name == "time" else math.nan
    if not math.isfinite(number):
        dates = " and no date" if name == "time" else ""
        raise _broken(path, line, f"the {name} {text.strip()!r}, which is no number{dates}")
    return number


def _seconds(text: str) -> float:
    """Returns the seconds of a date, NaN where it is none; one without a time zone is in UTC."""
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        return math.nan
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def header_of(line: str) -> tuple[list[str], str]:
    """Returns the names of a CSV file's columns, and its delimiter."""
    delimiter = max(DELIMITERS, key=line.count)
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter))], delimiter


def _records(options: RecommendSet, path: Path, form: Form) -> Iterator[Record]:
    if form == "movielens-csv":
        yield from _table(path, MOVIELENS if options.min_rating is not None else MOVIELENS | {"rating": None})
        return
    if form == "csv":
        columns = {"user": options.user_column, "item": options.item_column, "time": options.time_column}
        yield from _table(path, columns | {"rating": options.rating_column})
        return
    line_of: dict[str, int] = {}
    with opened(path, form) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            fields = line.strip().split("::" if form == "movielens-dat" else None)
            if form == "sequences":
                user, *items = fields
                if user in line_of:
                    what = f"the user {user}, whose items stand on line {line_of[user]:,} already"
                    raise _broken(path, number, what)
                line_of[user] = number
                yield from ((number, user, item, None, None) for item in items)
            elif form == "pairs":
                if len(fields) != 2:
                    raise _broken(path, number, f"{len(fields)} words, where a user and an item are 2")
                yield number, fields[0], fields[1], None, None
            else:
                if len(fields) != 4:
                    raise _broken(path, number, f"{len(fields)} fields, where user::item::rating::time has 4")
                yield number, fields[0], fields[1], fields[3], fields[2]


def _table(path: Path, columns: Mapping[str, str | None]) -> Iterator[Record]:
    with opened(path, "csv") as file:
        header, delimiter = header_of(file.readline())
        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        next(reader, None)
        user, item, time, rating = (_place(path, header, columns[name]) for name in ("user", "item", "time", "rating"))
        assert user is not None
        assert item is not None
        try:
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise _broken(path, reader.line_num, f"{len(fields)} columns, and the header {len(header)}")
                stamp = None if time is None else fields[time]
                yield reader.line_num, fields[user], fields[item], stamp, None if rating is None else fields[rating]
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


@contextmanager
def opened(path: Path, form: Form) -> Iterator[IO[str]]:
    """Opens the file: MovieLens' .dat files are in Latin-1, everything else is in UTF-8."""
    try:
        with open(path, newline="", encoding="latin-1" if form == "movielens-dat" else "utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is no text in UTF-8 ({problem.reason}): save it as that") from None
    except OSError as problem:
        raise DataError(
            f"{path} cannot be read: {problem.strerror or problem}. Name a file with --interactions"
        ) from None


def _broken(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{path}, line {line:,}, has {what}. Correct the line, or say another --format")
