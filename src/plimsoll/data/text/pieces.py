"""Cuts documents into pieces of at most 64 KiB, always at the same places.

A file without separators is one document of any length, of which only about one piece is in memory at a time. A piece
ends after its last line break, else after its last space, else when it is full.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from plimsoll.data.text.streams import open_bytes
from plimsoll.errors import DataError
from plimsoll.units import KIB, MIB

PIECE = 64 * KIB
"""Largest size of a piece: characters of a string, or bytes of a UTF-8 file."""

END_OF_TEXT = "<|endoftext|>"
MARKERS, BLANK_LINES, WHOLE = "at <|endoftext|> markers", "at blank lines", "one file, one document"

_SEPARATORS = {
    MARKERS: re.compile(re.escape(END_OF_TEXT.encode())),
    BLANK_LINES: re.compile(rb"\n[ \t\r]{0,64}\n"),
    WHOLE: re.compile(rb"(?!)"),
}
_LONGEST_SEPARATOR = 66
_BLANK_START = re.compile(r"\A\ufeff?(?:[ \t]*\r?\n)*")
_READ = 256 * KIB


class Part(NamedTuple):
    """A piece of a document, from a file reader."""

    text: str
    at: dict
    """Place in the file just after the piece, as JSON."""
    last: bool
    """True if the document ends with this piece."""


def how_to_split(head: bytes) -> str:
    """Returns MARKERS if `head`, the first MiB of a text file, has an end-of-text marker, else BLANK_LINES."""
    return MARKERS if END_OF_TEXT.encode() in head else BLANK_LINES


def cut_string(text: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yields the pieces of `text[start:]`, each with its end as an index into `text`."""
    while len(text) - start > PIECE:
        end = _last_break(text, "\n", " ", start)
        yield text[start:end], end
        start = end
    yield text[start:], len(text)


def _last_break(text: Any, line_end: Any, space: Any, start: int = 0) -> int:
    """Returns the end of a piece from `start`: after its last line end, else last space, else at PIECE elements."""
    for separator in (line_end, space):
        place = text.rfind(separator, start, start + PIECE)
        if place >= 0:
            return place + 1
    return start + PIECE


def split_file(path: Path, at: dict, *, how: str | None = None) -> Iterator[Part]:
    """Yields the documents of a text file in pieces, from the place `at`.

    White space around a document is dropped, and so are documents of only white space. A place has three entries:
    `offset` in bytes, `inside` (True inside a document), and `how`, the rule by which documents end (MARKERS,
    BLANK_LINES or WHOLE). If `how` is None, the first MiB decides.
    """
    offset = at.get("offset", 0)
    inside = at.get("inside", False)
    how = at.get("how", how)
    buffer = bytearray()
    with open_bytes(path, offset) as reader:
        if how is None:
            _fill(buffer, reader, MIB)
            how = how_to_split(bytes(buffer))
        while True:
            is_all = _fill(buffer, reader, PIECE + _LONGEST_SEPARATOR)
            if not buffer:
                if inside:  # the document ended with the piece before
                    yield Part("", {"offset": offset, "inside": False, "how": how}, True)
                return
            end, after, last = _next_cut(buffer, _SEPARATORS[how], is_all=is_all)
            text = _decoded(buffer[:end], path, offset)
            del buffer[:after]
            offset += after

            # Drop white space around a document.
            if not inside:
                text = _BLANK_START.sub("", text)
            if last:
                text = text.rstrip()
            if inside or text.strip():
                inside = not last
                yield Part(text, {"offset": offset, "inside": inside, "how": how}, last)


def _next_cut(buffer: bytearray, separator: re.Pattern[bytes], *, is_all: bool) -> tuple[int, int, bool]:
    """Returns the end of the next piece, the beginning of the following piece, and True if a document ends between."""
    match = separator.search(buffer, 0, PIECE + _LONGEST_SEPARATOR)
    if match and match.start() <= PIECE:
        return match.start(), match.end(), True
    if is_all and len(buffer) <= PIECE:
        return len(buffer), len(buffer), True
    end = _last_break(buffer, b"\n", b" ")
    while end > PIECE - 4 and buffer[end] & 0xC0 == 0x80:  # not inside a character
        end -= 1
    return end, end, False


def _decoded(content: bytearray, path: Path, offset: int) -> str:
    """Decodes bytes that begin at byte `offset` of the file. Raises DataError if they are not UTF-8 text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise not_text(str(path), offset + problem.start) from problem
    if "\0" in text:
        raise not_text(str(path), offset + content.index(b"\0"))
    return text


def _fill(buffer: bytearray, reader: BinaryIO, size: int) -> bool:
    """Reads until the buffer has `size` bytes. Returns True if the stream ended before."""
    while len(buffer) < size:
        more = reader.read(_READ)
        if not more:
            return True
        buffer.extend(more)
    return False


def not_text(name: str, offset: int) -> DataError:
    """Returns the error for a file whose byte at `offset` is invalid in UTF-8 text."""
    return DataError(
        f"{name} is not UTF-8 text: byte {offset:,} cannot be part of it, so the file is binary or in "
        "another encoding. Convert it (iconv -t utf-8), or name a .txt, .jsonl or .parquet file."
    )
