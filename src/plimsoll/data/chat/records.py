"""Reads records for fine-tuning from files, folders and the Hugging Face hub.

A record has `messages`, or `prompt` and `completion`, or `text`. All records must be of the first record's kind. Other
columns are ignored, except `tools`, which is passed to the chat template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from plimsoll.data import require_sizes
from plimsoll.data.hub import HubStream
from plimsoll.data.text.formats import File, json_lines, open_parquet, parsed, table_rows
from plimsoll.data.text.opening import named_files
from plimsoll.errors import DataError, names_in_words
from plimsoll.files.facts import Facts, facts_of
from plimsoll.units import MIB, format_bytes

KINDS: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "prompt": ("prompt", "completion"),
    "text": ("text",),
}
"""Columns that each kind of record needs. A record is of the first kind whose columns it has."""
LARGEST_LIST = 64 * MIB
"""Largest .json file in bytes. Such a file holds one list, which is parsed at once."""
_COLUMNS = ("messages", "prompt", "completion", "text", "tools")
_FORMATS = ("jsonl", "parquet", "json")
_ADVICE = (
    "A record has `messages` (a list of objects with role and content), `prompt` and `completion`, or `text`: rename"
    " its columns"
)


class Record(NamedTuple):
    """One unprocessed record."""

    kind: str
    """A key of KINDS."""
    columns: Mapping[str, Any]
    where: str
    """Number of the line or row, and file, for error messages."""


@dataclass(frozen=True)
class Records:
    """The records of a data set, in the order of its files. Keeps no file open between reads."""

    files: tuple[File | HubStream, ...]
    name: str
    max_examples: int | None = None

    @property
    def paths(self) -> list[Path] | None:
        """Paths of the files; None for a stream from the hub."""
        paths = [file.path for file in self.files if isinstance(file, File)]
        return paths if len(paths) == len(self.files) else None

    def facts(self, **options: Any) -> Facts:
        """Returns facts that identify these records and `options`: hashes of files, or a stream's file addresses."""
        if (paths := self.paths) is not None:
            formats = sorted({path.suffix for path in paths})
            return facts_of(paths, exact=True, formats=formats, **options)
        (stream,) = [file for file in self.files if isinstance(file, HubStream)]
        files = stream.files()
        local = [Path(file) for file in files if Path(file).is_file()]
        return facts_of(local, exact=True, stream=[stream.name, stream.config, stream.split, files], **options)

    def describe(self) -> str:
        """Returns one line: name, and number, formats and size of the files."""
        limit = f", the first {self.max_examples:,} records" if self.max_examples is not None else ""
        if (paths := self.paths) is None:
            return f"{self.name}, streamed through datasets{limit}"
        formats = " and ".join(sorted({path.suffix for path in paths}))
        size = format_bytes(sum(path.stat().st_size for path in paths))
        return f"{self.name}: {len(paths):,} {formats} file{'s' * (len(paths) > 1)}, {size}{limit}"

    def __iter__(self) -> Iterator[Record]:
        """Yields the records.

        Raises:
            DataError: A record is not an object, is of another kind than the first record, or there is no record.
        """
        kind = None
        for columns, where in islice(self._rows(), self.max_examples):
            kind = kind or _kind_of(columns, where)
            missing = [column for column in KINDS[kind] if columns.get(column) is None]
            if missing:
                raise DataError(
                    f"{where} has no {' and no '.join(missing)}, but the first record of {self.name} has: all records"
                    f" of a data set must have the same columns ({' and '.join(KINDS[kind])}). Correct it, or split the"
                    " file"
                )
            yield Record(kind, columns, where)
        if kind is None:
            raise DataError(f"{self.name} holds no records: its files are empty. {_ADVICE}")

    def _rows(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        for file in self.files:
            if isinstance(file, HubStream):
                yield from _numbered(file.records(), "row", file)
            elif file.format == "jsonl":
                for record, number, _, _ in json_lines(file):
                    if record is not None:
                        yield record, f"line {number} of {file.name}"
            else:
                rows = _list(file) if file.format == "json" else _table_rows(file)
                yield from _numbered(rows, "record", file)


def _numbered(rows: Iterable[Any], unit: str, file: File | HubStream) -> Iterator[tuple[Any, str]]:
    for number, row in enumerate(rows, 1):
        yield row, f"{unit} {number} of {file.name}"


def open_records(
    dataset_id: str, *, config: str | None = None, split: str = "train", max_examples: int | None = None
) -> Records:
    """Opens the records that `dataset_id` names, without reading a record.

    Args:
        dataset_id: A .jsonl (also .gz or .zst of it), .json or .parquet file, a folder of these, or a data set's id on
            the Hugging Face hub.
        config: Configuration of a hub data set.
        split: Split of a hub data set.
        max_examples: Largest number of records to read.

    Raises:
        DataError: The name is neither a path nor an id, or the format is not supported.
    """
    require_sizes(max_examples=max_examples)
    path = Path(dataset_id).expanduser()
    if path.is_file() and path.suffix.lower() == ".json":
        files = [File(path=path, format="json")]
    else:
        files = named_files(dataset_id, config=config, split=split)
    if files is None:
        stream = HubStream(name=dataset_id, config=config, split=split, column="")
        return Records((stream,), dataset_id, max_examples)
    plain = [file.path for file in files if file.format not in _FORMATS]
    if plain:
        raise DataError(
            f"{plain[0]} is plain text, and examples to fine-tune on are records (.jsonl, .json, .parquet)."
            ' Write it as .jsonl, one document a line, like {"text": "..."}'
        )
    return Records(tuple(files), dataset_id, max_examples)


def _kind_of(columns: Mapping[str, Any], where: str) -> str:
    for kind, names in KINDS.items():
        if all(columns.get(name) is not None for name in names):
            return kind
    names = names_in_words(columns, all_of_them="`plimsoll inspect`") or "no columns"
    raise DataError(f"{where} has {names}, which is no example. {_ADVICE}")


def _table_rows(file: File) -> Iterator[dict[str, Any]]:
    with open_parquet(file) as table:
        names = table.schema_arrow.names
        wanted = [name for name in names if name in _COLUMNS] or names
        for group in range(table.num_row_groups):
            yield from table_rows(table, wanted, group)


def _list(file: File) -> Iterator[dict[str, Any]]:
    if file.size() > LARGEST_LIST:
        raise DataError(
            f"{file.name} has {format_bytes(file.size())}, and a .json file is parsed whole: up to"
            f" {format_bytes(LARGEST_LIST)}. Write it as .jsonl, one record a line: `jq -c '.[]'` does that"
        )
    records = parsed(file.path.read_bytes(), list, file.name, f"A .json file of examples is one list. {_ADVICE}")
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise DataError(f"record {number} of {file.name} is a {type(record).__name__}, not an object. {_ADVICE}")
        yield record
