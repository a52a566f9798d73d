"""Reads files of interactions line by line: detects the format, and yields rows (line, user, item, time, rating).

Rows are not kept in memory. An error names its line.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, get_args

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.prepare_options import Form, RecommendSet

LOOKED_AT = 1000
"""Number of lines at the start of a file from which its format is detected."""
DELIMITERS = ",\t;"
MOVIELENS = {"user": "userId", "item": "movieId", "time": "timestamp", "rating": "rating"}
"""Columns of MovieLens' ratings.csv."""
ABSENT = "0"
"""Text in place of a time or rating that the file lacks, or that is not needed."""

Record = tuple[int, str, str, str, str]
"""Line number, and user, item, time and rating as text."""


class Row(NamedTuple):
    line: int
    """Number of the line, from 1."""
    user: str
    item: str
    time: float
    """Time in seconds, or in whatever unit the file has; 0 if it has none."""
    rating: float
    """Rating; 0 if none is needed."""


def form_of(options: RecommendSet, path: Path) -> Form:
    """Returns the format of a file: the one that the options name, or the one detected in the first thousand lines."""
    if options.format is not None:
        return options.format
    if options.user_column is not None:
        return "csv"
    with opened(path, errors="replace") as file:
        lines = [line for line in islice(file, LOOKED_AT) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty: it has no interactions")

    for form, is_sure in _signs(lines).items():
        if is_sure:
            return form
    raise DataError(
        f"{path} has no format that is certain from its first {len(lines):,} lines; it begins with"
        f" {lines[0].strip()[:200]!r}. Say which it is with --format {', '.join(get_args(Form))}; csv needs"
        " --user-column and --item-column too, and --time-column if it has times"
    )


def _signs(lines: list[str]) -> dict[Form, bool]:
    """Returns, for each format, True if the first lines of a file are certainly in that format."""
    header, _ = header_of(lines[0])
    words = [line.split() for line in lines]
    users = {fields[0] for fields in words}
    is_table = len(header) > 1 and "," in lines[0]
    return {
        "movielens-dat": all(line.count("::") >= 2 for line in lines),
        "movielens-csv": {MOVIELENS["user"], MOVIELENS["item"]} <= {*header},
        "pairs": not is_table and {*map(len, words)} == {2},
        "sequences": not is_table and min(map(len, words)) > 1 and len(users) == len(words),
    }


def rows(options: RecommendSet, path: Path, form: Form) -> Iterator[Row]:
    """Yields all rows in the order of the file, rows with low ratings included."""
    if options.min_rating is not None and form in ("pairs", "sequences"):
        raise DataError(f"--min-rating {options.min_rating:g}: {path} has no ratings, being read as --format {form}")
    if form == "movielens-csv":
        records = _table(path, MOVIELENS if options.min_rating is not None else MOVIELENS | {"rating": None})
    elif form == "csv":
        columns = {"user": options.user_column, "item": options.item_column, "time": options.time_column}
        records = _table(path, columns | {"rating": options.rating_column})
    else:
        records = _words(path, form)
    for line, user, item, time, rating in records:
        if not (user.strip() and item.strip()):
            raise _broken(path, line, "an empty user or item")
        yield Row(
            line, user.strip(), item.strip(), _number(path, line, "time", time), _number(path, line, "rating", rating)
        )


def _number(path: Path, line: int, name: str, text: str) -> float:
    """Returns a time or rating as a number. A date becomes seconds; without a time zone it is in UTC."""
    try:
        number = float(text)
    except ValueError:
        number = _seconds(text.strip()) if name == "time" else math.nan
    if not math.isfinite(number):
        dates = " and no date" if name == "time" else ""
        raise _broken(path, line, f"the {name} {text.strip()!r}, which is no number{dates}")
    return number


def _seconds(text: str) -> float:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def header_of(line: str) -> tuple[list[str], str]:
    """Returns the names of a CSV file's columns, and its delimiter."""
    delimiter = max(DELIMITERS, key=line.count)
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter))], delimiter


def _words(path: Path, form: Form) -> Iterator[Record]:
    """Yields the records of a file without a header: MovieLens' .dat, pairs or sequences."""
    separator = "::" if form == "movielens-dat" else None
    with opened(path, encoding="latin-1" if separator else "utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            match form, line.strip().split(separator):
                case "sequences", [user, *items]:
                    for item in items:
                        yield number, user, item, ABSENT, ABSENT
                case "pairs", [user, item]:
                    yield number, user, item, ABSENT, ABSENT
                case "movielens-dat", [user, item, rating, time]:
                    yield number, user, item, time, rating
                case _, fields:
                    raise _broken(path, number, f"{len(fields)} fields, the wrong number for --format {form}")


def _table(path: Path, columns: Mapping[str, str | None]) -> Iterator[Record]:
    with opened(path) as file:
        header, delimiter = header_of(file.readline())
        for column in columns.values():
            if column is not None and column not in header:
                raise DataError(
                    f"{path} has no column {column!r}; its first line has {', '.join(header)[:200] or 'nothing'}. Name"
                    " another one of them (--user-column, --item-column, --time-column, --rating-column), or say"
                    " another --format"
                )
        places = {name: header.index(column) for name, column in columns.items() if column is not None}

        file.seek(0)
        reader = csv.reader(file, delimiter=delimiter)
        next(reader, None)
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                raise _broken(path, reader.line_num, f"{len(fields)} columns, and the header {len(header)}")
            values = {name: fields[place] for name, place in places.items()}
            time = values.get("time", ABSENT)
            yield reader.line_num, values["user"], values["item"], time, values.get("rating", ABSENT)


@contextmanager
def opened(path: Path, *, encoding: str = "utf-8-sig", errors: str = "strict") -> Iterator[IO[str]]:
    """Opens the file: MovieLens' .dat files are in Latin-1, everything else is in UTF-8."""
    try:
        with open(path, newline="", encoding=encoding, errors=errors) as file:
            yield file
    except UnicodeDecodeError as problem:
        raise DataError(f"{path} is no text in UTF-8 ({problem.reason}): save it as UTF-8") from None
    except OSError as problem:
        raise DataError(
            f"{path} cannot be read: {problem.strerror or problem}. Name a file with --interactions"
        ) from None


def _broken(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{path}, line {line:,}, has {what}. Correct the line, or say another --format")
