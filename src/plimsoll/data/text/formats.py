"""One reader per file format: documents in pieces, from the place where an earlier reader stopped.

A reader is called with the file and a place (`{}` is the beginning) and yields `Part`s. The place of a record
file is the record it is in and the characters of that record already read.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plimsoll.data.text.pieces import WHOLE, Part, cut_string, how_to_split, not_text, split_bytes
from plimsoll.data.text.streams import open_bytes, uncompressed_suffix
from plimsoll.errors import DataError
from plimsoll.units import MIB, format_bytes

LONGEST_LINE = 16 * MIB
"""Bytes of one JSON line: a line is parsed whole, so this bounds memory."""

_ROWS = 64  # of a parquet or arrow file, decoded at a time


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a data set: its format, and which column holds the text."""

    path: Path
    format: str
    column: str = "text"

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self, at: dict) -> Iterator[Part]:
        return READERS[self.format](self, at)

    def rows(self) -> int | None:
        """Documents, where the file says so without being read."""
        return _parquet_rows(self) if self.format == "parquet" else None

    def imports(self) -> tuple[str, ...]:
        return {"parquet": ("pyarrow.parquet",), "arrow": ("pyarrow",)}.get(self.format, ())

    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def columns(self) -> list[str] | None:
        """Of the table, or of the first line; None for plain text."""
        return COLUMNS[self.format](self) if self.format in COLUMNS else None


def _read_text(file: File, at: dict) -> Iterator[Part]:
    offset, inside, how = at.get("offset", 0), at.get("inside", False), at.get("how")
    with open_bytes(file.path, offset) as reader:
        yield from split_bytes(reader, name=file.name, how=how, offset=offset, inside=inside)


def _read_whole(file: File, at: dict) -> Iterator[Part]:
    return _read_text(file, {"how": WHOLE} | at)


def _read_jsonl(file: File, at: dict) -> Iterator[Part]:
    offset, line_number = at.get("offset", 0), at.get("line", 0)
    inside = at.get("inside", 0)
    with open_bytes(file.path, offset) as reader:
        while line := reader.readline(LONGEST_LINE + 1):
            line_number += 1
            text = _text_of_line(line, file, line_number, offset)
            here = {"offset": offset, "line": line_number - 1}
            offset += len(line)
            yield from record_parts(text, inside, here, {"offset": offset, "line": line_number})
            inside = 0


def _text_of_line(line: bytes, file: File, number: int, offset: int) -> str | None:
    if not line.strip():
        return None
    record = _record_of_line(line, file, number, offset)
    if file.column not in record:
        raise no_column(f"line {number} of {file.name}", file.column, list(record))
    return text_of(record[file.column], file.column, f"line {number} of {file.name}")


def _record_of_line(line: bytes, file: File, number: int, offset: int) -> dict:
    if len(line) > LONGEST_LINE:
        raise DataError(
            f"line {number} of {file.name} is longer than "
            f"{format_bytes(LONGEST_LINE)}, the limit, since lines are parsed whole. A .jsonl file has one "
            "JSON object per line; a .txt file has no such limit."
        )
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as problem:
        raise not_text(file.name, offset + problem.start) from problem
    except (ValueError, RecursionError) as problem:
        raise DataError(
            f"line {number} of {file.name} is not JSON ({problem}): {_shown(line)}. "
            'A .jsonl file has one JSON object per line, like {"text": "..."}.'
        ) from problem
    if not isinstance(record, dict):
        raise DataError(
            f"line {number} of {file.name} is a JSON {type(record).__name__}, not an object: {_shown(line)}. "
            'A .jsonl file has one JSON object per line, like {"text": "..."}.'
        )
    return record


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return repr(text if len(text) <= 60 else text[:60] + "...")


def no_column(where: str, column: str, columns: list[str]) -> DataError:
    names = ", ".join(columns[:20]) or "none"
    return DataError(f"{where} has no column {column!r}; it has: {names}. Choose one with --text-column.")


def text_of(value: object, column: str, where: str) -> str | None:
    """The text of a record; an absent one (null) is no document."""
    if value is None:
        return None
    if isinstance(value, str):  # JSON can spell half of a surrogate pair, which no tokenizer takes
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    raise DataError(
        f"column {column!r} of {where} holds {type(value).__name__}, not text. Choose another with --text-column."
    )


def record_parts(text: str | None, inside: int, here: dict, after: dict) -> Iterator[Part]:
    if text is None or not text.strip():
        return
    for piece, end in cut_string(text, inside):
        last = end == len(text)
        yield Part(piece, after if last else here | {"inside": end}, last)


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as problem:
        reason = " ".join(str(problem).split())[:160]
        raise DataError(
            f"{path} is not a readable {path.suffix} file ({reason}): it is damaged, truncated or of another "
            "format. Copy or download it again."
        ) from problem


def _check_column(file: File, schema) -> None:
    import pyarrow.types as kinds

    if file.column not in schema.names:
        raise no_column(file.name, file.column, schema.names)
    kind = schema.field(file.column).type
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        raise DataError(
            f"column {file.column!r} of {file.name} holds {kind}, not text; its columns are: "
            f"{', '.join(f'{field.name} ({field.type})' for field in schema)}. Choose one with --text-column."
        )


def _row_parts(rows: Iterator, at: dict, place: dict) -> Iterator[Part]:
    """Parts of arrow columns that begin at row 0 of `place`; rows before the one in `at` are skipped."""
    first, inside, row = at.get("row", 0), at.get("inside", 0), 0
    for column in rows:
        for index in range(max(first - row, 0), len(column)):
            text = column[index].as_py()
            here, after = place | {"row": row + index}, place | {"row": row + index + 1}
            yield from record_parts(text, inside, here, after)
            inside = 0
        row += len(column)


def _read_parquet(file: File, at: dict) -> Iterator[Part]:
    import pyarrow.parquet as parquet

    with _arrow_errors(file.path), parquet.ParquetFile(file.path, buffer_size=MIB, pre_buffer=False) as table:
        _check_column(file, table.schema_arrow)
        for group in range(at.get("group", 0), table.num_row_groups):
            slices = table.iter_batches(_ROWS, [group], [file.column], use_threads=False)
            rows = (batch.column(0) for batch in slices)
            yield from _row_parts(rows, at if at.get("group") == group else {}, {"group": group})


def _parquet_columns(file: File) -> list[str]:
    import pyarrow.parquet as parquet

    with _arrow_errors(file.path), parquet.ParquetFile(file.path) as table:
        return table.schema_arrow.names


def _arrow_columns(file: File) -> list[str]:
    import pyarrow

    with _arrow_errors(file.path), pyarrow.OSFile(str(file.path)) as stream:
        return pyarrow.ipc.open_stream(stream).schema.names


def _jsonl_columns(file: File) -> list[str]:
    with open_bytes(file.path) as reader:
        line = reader.readline(LONGEST_LINE + 1)
    return list(_record_of_line(line, file, 1, 0)) if line.strip() else []


def _parquet_rows(file: File) -> int:
    import pyarrow.parquet as parquet

    with _arrow_errors(file.path), parquet.ParquetFile(file.path) as table:
        return table.metadata.num_rows


def _read_arrow(file: File, at: dict) -> Iterator[Part]:
    """The stream format in which `datasets` saves. Not memory-mapped: mapped pages count as resident."""
    import pyarrow

    with _arrow_errors(file.path), pyarrow.OSFile(str(file.path)) as stream:
        reader = pyarrow.ipc.open_stream(stream)
        _check_column(file, reader.schema)
        for group, batch in enumerate(reader):
            if group >= at.get("group", 0):
                batch.validate(
                    full=True
                )  # Arrow trusts offsets: damaged ones read beyond the buffer, or end the process
                rows = iter([batch.column(reader.schema.get_field_index(file.column))])
                yield from _row_parts(rows, at if at.get("group") == group else {}, {"group": group})


READERS: dict[str, Callable[[File, dict], Iterator[Part]]] = {
    "text": _read_text,
    "whole": _read_whole,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}

COLUMNS: dict[str, Callable[[File], list[str]]] = {
    "jsonl": _jsonl_columns,
    "parquet": _parquet_columns,
    "arrow": _arrow_columns,
}

_SUFFIXES = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_BINARY_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow"}
KNOWN = ".txt, .jsonl (also .gz or .zst of these), .parquet"


def format_of(path: Path) -> str | None:
    """By the name of the file; None for a file that is not read."""
    return _BINARY_SUFFIXES.get(path.suffix.lower()) or _SUFFIXES.get(uncompressed_suffix(path))


def splitting_of(file: File) -> str:
    """Where the documents of a file end, in words."""
    if file.format == "whole":
        return WHOLE
    if file.format != "text":
        return "one row, one document" if file.format in ("parquet", "arrow") else "one line, one document"
    with open_bytes(file.path) as reader:
        return how_to_split(reader.read(MIB))
