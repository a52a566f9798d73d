"""Names of the items of a set of interactions: `items.jsonl`, a line per item, in the order of ids.

    {"id": 1, "original": "12", "title": "Toy Story (1995)", "genres": "Adventure, Animation"}

Ids begin with 1, because 0 is padding; `original` is the item's name in the prepared file; `genres` is there if the
file of titles has them.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.formats import MOVIELENS, header_of, opened
from plimsoll.recipes.recommend.prepare_options import Form, RecommendSet

ITEMS = "items.jsonl"


@dataclass(frozen=True)
class Catalogue:
    """Names of items, in the order of their ids."""

    originals: list[str]
    """Names in the prepared file."""
    titles: list[str | None]
    """None for an item without a title."""
    genres: dict[int, str] = field(default_factory=dict)
    """Id to genres, of the items that have some."""

    @classmethod
    def read(cls, folder: Path) -> Catalogue:
        path = folder / ITEMS
        if not path.is_file():
            raise DataError(f"there is no {ITEMS} in {folder}: the data set is not whole. Prepare it again")
        catalogue = cls([], [])
        try:
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    item = json.loads(line)
                    if item["id"] != number:
                        raise ValueError(f"it has the id {item['id']}")
                    title = None if item["title"] is None else str(item["title"])
                    catalogue.originals.append(str(item["original"]))
                    catalogue.titles.append(title)
                    if item.get("genres"):
                        catalogue.genres[number] = str(item["genres"])
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            words = f"it has no {problem}" if isinstance(problem, KeyError) else problem
            raise DataError(
                f"{path}, line {len(catalogue.originals) + 1:,}, is no item with its id, original and title ({words}):"
                " prepare the data set again"
            ) from None
        return catalogue

    def write(self, folder: Path) -> None:
        with open(folder / ITEMS, "w", encoding="utf-8") as file:
            for item in range(1, len(self.originals) + 1):
                genres = {"genres": self.genres[item]} if item in self.genres else {}
                file.write(json.dumps(self.described(item) | genres, ensure_ascii=False) + "\n")

    def described(self, item: int) -> dict[str, Any]:
        """Returns the id and both names of an item."""
        return {"id": item, "original": self.originals[item - 1], "title": self.titles[item - 1]}

    def text(self, item: int) -> str | None:
        """Returns the title of an item with its genres, for a language model to read; None if it has no title."""
        title = self.titles[item - 1]
        return f"{title}: {self.genres[item]}" if title is not None and item in self.genres else title

    @property
    def sha256(self) -> str:
        """Hash of the original names in order, which identifies a catalogue."""
        return hashlib.sha256(json.dumps(self.originals).encode()).hexdigest()


TITLE_FILES: dict[Form, str] = {"movielens-csv": "movies.csv", "movielens-dat": "movies.dat"}
"""File with the titles, in the folder of MovieLens' ratings."""


def named(options: RecommendSet, path: Path, form: Form, originals: list[str]) -> tuple[Catalogue, Path | None]:
    """Returns the catalogue, with None for an item without a title, and the file of titles, if there is one."""
    titles = Path(options.items).expanduser() if options.items is not None else path.parent / TITLE_FILES.get(form, "")
    if options.items is None and (form not in TITLE_FILES or not titles.is_file()):
        return Catalogue(originals, [None] * len(originals)), None
    column = options.item_column if options.item_column is not None else MOVIELENS["item"]
    wanted = set(originals)
    found = [line for line in _titles(titles, column) if line[0] in wanted and line[1]]
    title_of = {item: title for item, title, _ in found}
    if options.items is not None and not title_of:
        raise DataError(
            f"--items {options.items} has a title for none of the {len(originals):,} items of {path} (like"
            f" {originals[0]!r}): it is of another catalogue, or its items do not stand in its column {column!r} or its"
            " first one"
        )
    genres_of = {item: genres for item, _, genres in found if genres}
    genres = {number: genres_of[item] for number, item in enumerate(originals, 1) if item in genres_of}
    return Catalogue(originals, [title_of.get(item) for item in originals], genres), titles


def _titles(path: Path, column: str) -> Iterator[tuple[str, str, str]]:
    """Yields items, titles and genres ("" for none), from a CSV file with a column `title` or MovieLens' movies.dat."""
    with opened(path, "movielens-dat", option="--items") as file:
        if "::" in file.readline():
            file.seek(0)
            split = (line.split("::") for line in file)
            yield from ((at[0].strip(), at[1].strip(), _genres("".join(at[2:3]))) for at in split if len(at) > 1)
            return
    with opened(path, "csv") as file:
        header, delimiter = header_of(file.readline())
        names = [name.lower() for name in header]
        if "title" not in names:
            raise DataError(
                f"{path} has no column title; its first line has {', '.join(header)[:200] or 'nothing'}. Name a CSV"
                " file that has one with --items, or MovieLens' movies.dat"
            )
        item, title = header.index(column) if column in header else 0, names.index("title")
        genres = names.index("genres") if "genres" in names else len(names)
        try:
            for fields in csv.reader(file, delimiter=delimiter):
                if len(fields) > max(item, title):
                    yield fields[item].strip(), fields[title].strip(), _genres("".join(fields[genres : genres + 1]))
        except csv.Error as problem:
            raise DataError(f"{path} is no CSV file that can be read: {problem}") from None


def _genres(text: str) -> str:
    """Returns MovieLens' `Adventure|Children` as `Adventure, Children`."""
    return "" if text.strip() == "(no genres listed)" else ", ".join(text.strip().split("|"))
