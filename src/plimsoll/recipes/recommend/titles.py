"""Titles of items: a CSV file with a column `title`, or MovieLens' movies.dat."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.catalogue import Catalogue
from plimsoll.recipes.recommend.formats import MOVIELENS, delimiter_of, header_of, opened
from plimsoll.recipes.recommend.prepare_options import Form, RecommendSet

BESIDE: dict[Form, str] = {"movielens-csv": "movies.csv", "movielens-dat": "movies.dat"}
"""File with the titles, in the folder of MovieLens' ratings."""


def named(made: RecommendSet, path: Path, form: Form, originals: list[str]) -> tuple[Catalogue, Path | None]:
    """Returns the catalogue, with None for an item without a title, and the file of titles, if there is one."""
    titles = Path(made.items).expanduser() if made.items is not None else path.parent / BESIDE.get(form, "")
    if made.items is None and (form not in BESIDE or not titles.is_file()):
        return Catalogue(originals, [None] * len(originals)), None
    column = made.item_column if made.item_column is not None else MOVIELENS["item"]
    wanted = set(originals)
    found = {item: title for item, title in _titles(titles, column) if item in wanted and title}
    if made.items is not None and not found:
        raise DataError(
            f"--items {made.items} has a title for none of the {len(originals):,} items of {path} (like"
            f" {originals[0]!r}): it is of another catalogue, or its items do not stand in its column {column!r} or its"
            " first one"
        )
    return Catalogue(originals, [found.get(item) for item in originals]), titles


def _titles(path: Path, column: str) -> Iterator[tuple[str, str]]:
    """Yields items with their titles."""
    with opened(path, "movielens-dat", option="--items") as file:
        dat = "::" in file.readline()
    if dat:
        with opened(path, "movielens-dat") as file:
            yield from ((fields[0].strip(), fields[1].strip()) for line in file if len(fields := line.split("::")) > 1)
        return
    with opened(path, "csv") as file:
        first = file.readline()
        header = header_of(first)
        names = [name.lower() for name in header]
        if "title" not in names:
            raise DataError(
                f"{path} has no column title; its first line has {', '.join(header)[:200] or 'nothing'}. Name a CSV"
                " file that has one with --items, or MovieLens' movies.dat"
            )
        item, title = header.index(column) if column in header else 0, names.index("title")
        try:
            for fields in csv.reader(file, delimiter=delimiter_of(first)):
                if len(fields) > max(item, title):
                    yield fields[item].strip(), fields[title].strip()
        except csv.Error as problem:
            raise DataError(f"{path} is no CSV file that can be read: {problem}") from None
