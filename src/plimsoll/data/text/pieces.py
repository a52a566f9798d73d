"""Documents in pieces of at most 64 KiB, cut at the same places every time.

A file without separators is one document of any length; nothing here ever holds more than one piece of it.
The cut is after the last line break of the piece, else after its last space, else where the piece is full.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from plimsoll.data.text.streams import open_bytes
from plimsoll.errors import DataError
from plimsoll.units import KIB, MIB

PIECE = 64 * KIB
"""Most characters of a string, or bytes of UTF-8 (which are at least as many), in a piece."""

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
    """A piece as a file reader yields it."""

    text: str
    at: dict
    """Place in the file just after the piece, as JSON."""
    last: bool
    """Whether it ends its document."""


def how_to_split(head: bytes) -> str:
    """Decides from the first MiB of a text file where its documents end."""
    return MARKERS if END_OF_TEXT.encode() in head else BLANK_LINES


def cut_string(text: str, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yields the pieces of `text[start:]`, and where each ends."""
    while len(text) - start > PIECE:
        end = (text.rfind("\n", start, start + PIECE) + 1) or (text.rfind(" ", start, start + PIECE) + 1)
        end = end or start + PIECE
        yield text[start:end], end
        start = end
    yield text[start:], len(text)


def split_file(path: Path, at: dict, *, how: str | None = None) -> Iterator[Part]:
    """Yields the documents of a text file in pieces, from a place on.

    White space around a document is dropped, and a document of nothing else is none. A place is the `offset` in bytes,
    whether the first pieces of a document are before it (`inside`), and `how` documents end: MARKERS, BLANK_LINES or
    WHOLE, which the first MiB decides where neither the place nor the argument says it.
    """
    offset, inside, how = at.get("offset", 0), at.get("inside", False), at.get("how", how)
    buffer = bytearray()
    with open_bytes(path, offset) as reader:
        if how is None:
            _fill(buffer, reader, MIB)
            how = how_to_split(bytes(buffer))
        while True:
            ended = _fill(buffer, reader, PIECE + _LONGEST_SEPARATOR)
            if not buffer:
                if inside:  # the document ended with the piece before
                    yield Part("", {"offset": offset, "inside": False, "how": how}, True)
                return
            separator = _SEPARATORS[how].search(buffer, 0, PIECE + _LONGEST_SEPARATOR)
            if separator and separator.start() <= PIECE:
                end, after, last = separator.start(), separator.end(), True
            elif ended and len(buffer) <= PIECE:
                end, after, last = len(buffer), len(buffer), True
            else:
                end = (buffer.rfind(b"\n", 0, PIECE) + 1) or (buffer.rfind(b" ", 0, PIECE) + 1) or PIECE
                while end > PIECE - 4 and buffer[end] & 0xC0 == 0x80:  # not inside a character
                    end -= 1
                after, last = end, False
            try:
                text = buffer[:end].decode("utf-8")
            except UnicodeDecodeError as problem:
                raise not_text(str(path), offset + problem.start) from problem
            if "\0" in text:
                raise not_text(str(path), offset + buffer.index(b"\0"))
            del buffer[:after]
            offset += after
            text = text if inside else _BLANK_START.sub("", text)
            text = text.rstrip() if last else text
            if inside or text.strip():
                inside = not last
                yield Part(text, {"offset": offset, "inside": inside, "how": how}, last)


def _fill(buffer: bytearray, reader: BinaryIO, size: int) -> bool:
    """Reads until the buffer has `size` bytes; tells whether the stream ended before."""
    while len(buffer) < size:
        more = reader.read(_READ)
        if not more:
            return True
        buffer.extend(more)
    return False


def not_text(name: str, offset: int) -> DataError:
    """Builds the refusal of a file with a byte that no UTF-8 text has."""
    return DataError(
        f"{name} is not UTF-8 text: byte {offset:,} cannot be part of it, so the file is binary or in "
        "another encoding. Convert it (iconv -t utf-8), or name a .txt, .jsonl or .parquet file."
    )
