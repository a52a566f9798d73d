"""Readers of the file formats. Each yields documents in pieces (`Part`), and continues from a saved place.

A place is a dict; `{}` is the beginning of a file. In a file of records, it has the position of a record and the number
of its characters already read.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.data import in_short
from plimsoll.data.text.pieces import WHOLE, Part, cut_string, split_file
from plimsoll.data.text.streams import COMPRESSED, open_bytes
from plimsoll.errors import DataError, names_in_words
from plimsoll.units import MIB, format_bytes

LONGEST_LINE = 16 * MIB
"""Largest size of a JSON line in bytes. It bounds memory, since a line is parsed at once."""

_ROWS = 64
"""Rows of a parquet file per decoded batch."""
_SUFFIXES = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl"}
KNOWN = ".txt, .jsonl (also .gz or .zst of these), .parquet"


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a data set, with its format and the name of its text column."""

    path: Path
    format: str
    """One of text, whole (the file is one document), jsonl, json (read by chat/records.py) and parquet."""
    column: str = "text"

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self, at: dict) -> Iterator[Part]:
        """Yields the documents after the place `at`, in pieces."""
        if self.format == "parquet":
            return _read_table(self, at)
        if self.format == "jsonl":
            return _read_jsonl(self, at)
        return split_file(self.path, at, how=WHOLE if self.format == "whole" else None)

    def imports(self) -> tuple[str, ...]:
        """Returns the names of modules that reading imports. A plan counts their memory."""
        return ("pyarrow.parquet",) if self.format == "parquet" else ()

    def size(self) -> int:
        """Returns the bytes on disk."""
        return self.path.stat().st_size

    def columns(self) -> list[str] | None:
        """Returns the columns of a parquet file, or the keys of the first JSON line; None for plain text."""
        if self.format == "parquet":
            with open_parquet(self) as table:
                return table.schema_arrow.names
        if self.format != "jsonl":
            return None
        record, *_ = next(json_lines(self), (None,))
        return list(record or {})


def _read_jsonl(file: File, at: dict) -> Iterator[Part]:
    inside = at.get("inside", 0)
    for record, number, start, end in json_lines(file, at.get("offset", 0), at.get("line", 0)):
        text = None if record is None else text_of(record, file.column, f"line {number} of {file.name}")
        here = {"offset": start, "line": number - 1}
        after = {"offset": end, "line": number}
        yield from record_parts(text, inside, here, after)
        inside = 0


def json_lines(file: File, offset: int = 0, number: int = 0) -> Iterator[tuple[dict | None, int, int, int]]:
    """Yields the object of each line from byte `offset`.

    Args:
        file: A file of the format jsonl.
        offset: Uncompressed byte at which a line begins.
        number: Number of lines before that line.

    Yields:
        The object (None for a blank line), the number of its line from 1, and the offsets in bytes at which the line
        begins and ends.
    """
    with open_bytes(file.path, offset) as reader:
        while line := reader.readline(LONGEST_LINE + 1):
            number += 1
            where = f"line {number} of {file.name}"
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{where} is longer than {format_bytes(LONGEST_LINE)}, the limit for a line. A .jsonl file has one"
                    " JSON object per line; a .txt file has no such limit."
                )
            record = None
            if line.strip():
                record = parsed(line, dict, where, 'A .jsonl file has one JSON object per line, like {"text": "..."}.')
            yield record, number, offset, offset + len(line)
            offset += len(line)


def parsed(content: bytes, kind: type, where: str, expected: str) -> Any:
    """Parses a JSON object or list. Raises DataError if the content is invalid or of another type.

    Args:
        content: The JSON, in UTF-8.
        kind: dict or list.
        where: Name of the content in error messages.
        expected: Description of valid content, the end of error messages.
    """
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except ValueError as problem:
        start = content[:60].decode("utf-8", "replace").strip()
        raise DataError(f"{where} is not JSON in UTF-8 ({in_short(problem)}): {start!r}. {expected}") from problem
    if not isinstance(value, kind):
        name = "an object" if kind is dict else "a list"
        raise DataError(f"{where} is a JSON {type(value).__name__}, not {name}. {expected}")
    return value


def no_column(where: str, column: str, columns: Iterable[str]) -> DataError:
    """Returns the error for a file or record that lacks the text column."""
    names = names_in_words(columns, all_of_them="`plimsoll inspect`") or "none"
    return DataError(f"{where} has no column {column!r}; it has: {names}. Choose one with --text-column.")


def text_of(record: Mapping[str, Any], column: str, where: str) -> str | None:
    """Returns the text in a record's `column`; None for null. Raises DataError if it is missing or not text."""
    if column not in record:
        raise no_column(where, column, record)
    value = record[column]
    if value is None or isinstance(value, str):
        return value and encodable(value)
    raise DataError(
        f"column {column!r} of {where} holds {type(value).__name__}, not text. Choose another with --text-column."
    )


def encodable(text: str) -> str:
    """Replaces lone surrogates, which JSON allows and tokenizers reject, by `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def record_parts(text: str | None, inside: int, here: dict, after: dict) -> Iterator[Part]:
    """Yields the pieces of a record from character `inside`. `here` is the record's place, `after` that of the next."""
    if text is None or not text.strip():
        return
    for piece, end in cut_string(text, inside):
        last = end == len(text)
        yield Part(piece, after if last else here | {"inside": end}, last)


@contextmanager
def open_parquet(file: File) -> Iterator[Any]:
    """Opens a parquet file. PyArrow's errors become DataError. Uses no memory map: mapped pages count as resident."""
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(file.path, buffer_size=MIB, pre_buffer=False) as table:
            yield table
    except (pyarrow.ArrowException, OSError) as problem:
        raise DataError(
            f"{file.path} is not a readable .parquet file ({in_short(problem)}): it is damaged, truncated or of another"
            " format. Copy or download it again."
        ) from problem


def table_rows(table: Any, columns: list[str], group: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of a row group of an open parquet file. Decodes _ROWS rows at a time."""
    for batch in table.iter_batches(_ROWS, [group], columns, use_threads=False):
        yield from batch.to_pylist()


def _read_table(file: File, at: dict) -> Iterator[Part]:
    """Yields the documents of a parquet file after `at`: the index of a row group, and of a row in that group."""
    with open_parquet(file) as table:
        if file.column not in table.schema_arrow.names:
            raise no_column(file.name, file.column, table.schema_arrow.names)
        first_group = at.get("group", 0)
        for group in range(first_group, table.num_row_groups):
            begin = at if group == first_group else {}
            inside = begin.get("inside", 0)
            for number, row in enumerate(table_rows(table, [file.column], group)):
                if number < begin.get("row", 0):
                    continue
                text = text_of(row, file.column, file.name)
                here = {"group": group, "row": number}
                after = {"group": group, "row": number + 1}
                yield from record_parts(text, inside, here, after)
                inside = 0


def format_of(path: Path) -> str | None:
    """Returns a file's format by its suffix, ignoring `.gz` and `.zst`; None if the format is not supported."""
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        return _SUFFIXES.get(path.with_suffix("").suffix.lower())
    return "parquet" if suffix == ".parquet" else _SUFFIXES.get(suffix)
