"""`metrics.jsonl`: one JSON object per logged step; survives a kill, and can be cut back to a checkpoint.

    {"step": 20, "loss": 3.2, "step_seconds": 0.4, "elapsed_seconds": 8.1, "tokens_per_second": 38095.2, ...}

JSON has no NaN and no infinity, and a reader who meets Python's bare `NaN` stops there. Such a value is
written as null and named beside it, so that it is neither invalid nor hidden; `read_rows` makes it a float
again:

    {"step": 40, "loss": null, "not_finite": {"loss": "nan"}}

A row is handed to the operating system before `log` returns, so SIGKILL loses none that was written. There
is no fsync per row: a power cut may lose the last seconds, which a resumed run writes again.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plimsoll.errors import RunError

MARKER = "not_finite"


def encode_row(step: int, values: Mapping[str, Any]) -> str:
    """One line of JSON; numbers of NumPy and JAX become Python's."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}
    marked = {
        name: str(value) for name, value in plain.items() if isinstance(value, float) and not math.isfinite(value)
    }
    row = {"step": int(step), **plain, **dict.fromkeys(marked)}
    return json.dumps(row | {MARKER: marked} if marked else row, allow_nan=False)


def decode_row(line: str | bytes) -> dict[str, Any]:
    row = json.loads(line)
    return row | {name: float(text) for name, text in row.pop(MARKER, {}).items()}


def read_rows(path: Path | str) -> Iterator[dict[str, Any]]:
    """The rows of a file, one at a time; a last line torn by a kill is not a row, other damage is refused."""
    for _, row in _lines_and_rows(Path(path)):
        yield row


class MetricsLog:
    """Appends rows to `path`. Opening drops a torn last line, so that the next row has a line of its own."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._open()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(encode_row(step, values).encode() + b"\n")
        self._file.flush()

    def rows(self) -> Iterator[dict[str, Any]]:
        return read_rows(self.path)

    def cut_after(self, step: int) -> int:
        """Removes the rows of later steps, which a resumed run will write again; returns how many there were.

        The shorter file is complete on disk before it takes the old one's name: a kill leaves one or the
        other.
        """
        self.close()
        shorter, removed = self.path.with_name(self.path.name + ".cut"), 0
        with open(shorter, "wb") as kept:
            for line, row in _lines_and_rows(self.path):
                if row["step"] <= step:
                    kept.write(line)
                else:
                    removed += 1
            kept.flush()
            os.fsync(kept.fileno())
        os.replace(shorter, self.path)
        _sync_folder(self.path.parent)
        self._open()
        return removed

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        _drop_torn_line(self.path)
        self._file = open(self.path, "ab")  # noqa: SIM115 - lives as long as the run


def _lines_and_rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = decode_row(line)
                int(row["step"])
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise RunError(
                    f"line {number} of {path} is not a row of metrics ({error!r}): the file was altered or "
                    "its disk is damaged. Remove that line, or move the file away; the checkpoints do not "
                    "depend on it"
                ) from None
            yield line, row


def _drop_torn_line(path: Path) -> None:
    if not path.exists() or not (size := path.stat().st_size):
        return
    with open(path, "r+b") as file:
        end = size
        while end > 0:  # backwards by blocks: the file may be long, and this process counts its bytes
            start = max(0, end - 4096)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)


def _sync_folder(folder: Path) -> None:
    """Makes a rename durable: the new name is data of the folder, not of the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
