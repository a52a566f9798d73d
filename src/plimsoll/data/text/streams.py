"""Reads bytes of a file, plain or compressed (`.gz`, `.zst`), from any offset. A truncated file raises DataError.

Offsets count uncompressed bytes. A plain file is positioned by `seek`. A compressed file is decompressed again up to
the offset, which takes time but no memory.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from plimsoll.errors import DataError
from plimsoll.units import KIB, MIB

COMPRESSED = (".gz", ".zst")
PACKED_TO = 4
"""Approximate bytes of text per byte of a compressed file."""

_ZST_INPUT = 4 * KIB  # compressed bytes per read: at a ratio of 1,000 they expand to 4 MiB


@contextmanager
def open_bytes(path: Path, offset: int = 0) -> Iterator[BinaryIO]:
    """Opens a buffered reader at `offset`. Errors during reading become DataError."""
    import zstandard

    suffix, left = path.suffix.lower(), offset
    try:
        with path.open("rb") as file:
            if suffix not in COMPRESSED:
                file.seek(offset)
                yield file
                return
            reader = gzip.GzipFile(fileobj=file) if suffix == ".gz" else io.BufferedReader(_Zstd(file))
            while left:
                skipped = len(reader.read(min(left, MIB)))
                if not skipped:
                    raise DataError(
                        f"{path} is {left} bytes shorter than the saved position: it changed since. Start a new run,"
                        " or put the old file back."
                    )
                left -= skipped
            yield cast(BinaryIO, reader)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as problem:
        raise DataError(
            f"{path} cannot be decompressed ({str(problem) or 'it is truncated'}): the file is damaged, or is not"
            f" {path.suffix}. Copy or download it again, or correct its name."
        ) from problem
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}.") from problem


class _Zstd(io.RawIOBase):
    """A raw stream of decompressed bytes that raises EOFError at a truncated frame.

    zstandard's own `stream_reader` treats such a frame as the end of the file. PyArrow's reader raises, but importing
    PyArrow adds tens of MiB to the process.
    """

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file = file
        self._new_frame = lambda: zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
        self._frame = None
        self._ready = memoryview(b"")
        self._compressed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._ready:
            self._compressed = self._compressed or self._file.read(_ZST_INPUT)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._new_frame()
            self._ready = memoryview(self._frame.decompress(self._compressed))
            self._compressed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
