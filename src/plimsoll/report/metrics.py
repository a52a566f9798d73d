"""Files that a run appends to: its metrics (`metrics.jsonl`) and its messages (`log.txt`).

Metrics are one JSON object per logged step. The file survives a kill, and can be cut back to a checkpoint:

    {"step": 20, "loss": 3.2, "step_seconds": 0.4, "elapsed_seconds": 8.1, "tokens_per_second": 38095.2, ...}

JSON has no NaN and no infinity, and many readers reject Python's bare `NaN`. Such a value is written as null, and
listed under `not_finite` in the same row; `read_rows` turns it back into a float:

    {"step": 40, "loss": null, "not_finite": {"loss": "nan"}}

A row is passed to the operating system before `log` returns, so SIGKILL loses no row. There is no fsync per row:
a power cut may lose the last seconds, which a resumed run writes again.
"""

import contextlib
import json
import math
import mmap
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from plimsoll.errors import RunError

MARKER = "not_finite"


def encode_row(step: int, values: Mapping[str, Any]) -> str:
    """Returns a row as a line of JSON; numbers of NumPy and JAX become Python's."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}
    marked = {
        name: str(value) for name, value in plain.items() if isinstance(value, float) and not math.isfinite(value)
    }
    row = {"step": int(step), **plain, **dict.fromkeys(marked)}
    return json.dumps(row | {MARKER: marked} if marked else row, allow_nan=False)


def with_tables(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns a row in which metrics like `NAME_0`, `NAME_1`, ... of these names are one dict, from number to value."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        stem, _, number = name.rpartition("_")
        if stem.removeprefix("validation_") in names:
            columns.setdefault(stem, {})[number] = float(value) if math.isfinite(value) else None
        else:
            columns[name] = value
    return columns


def read_rows(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file. An incomplete last line is skipped; other damage raises RunError."""
    return (row for _, row in _lines_and_rows(Path(path)))


class MetricsLog:
    """Log of metrics at `path`, which rows are appended to. Opening it removes an incomplete last line."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._open()

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(encode_row(step, values).encode() + b"\n")
        self._file.flush()

    def cut_after(self, step: int) -> int:
        """Removes the rows of later steps, which a resumed run writes again, and returns their number.

        The shorter file is complete on disk before it replaces the old one, so a kill leaves one of the two.
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
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # a new name is data of the folder, not of the file
        finally:
            os.close(folder)
        self._open()
        return removed

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        """Opens the file, and cuts off what follows its last newline.

        It is mapped for that, not read: it may be long, and memory is scarce.
        """
        self._file = open(self.path, "ab+")  # noqa: SIM115 - lives as long as the run
        if size := self.path.stat().st_size:
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            if end < size:
                self._file.truncate(end)


class NewRows:
    """Rows that any process appends to a file of metrics from now on.

    A session that continues a run replaces the file by a shorter one (`MetricsLog.cut_after`): the rows that it keeps
    are not new. What it cuts is still read from the file that was replaced, if a call of `read` has seen that file.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._file = self._opened()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def read(self) -> list[dict[str, Any]]:
        """Returns the rows that were completed since the last call."""
        with contextlib.suppress(FileNotFoundError):
            status = self._path.stat()
            if self._file is None or not os.path.samestat(status, os.fstat(self._file.fileno())):
                return self._rest() + self._rest_of_another()
        return self._rest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self) -> BinaryIO | None:
        with contextlib.suppress(FileNotFoundError):
            return open(self._path, "rb")
        return None

    def _rest(self) -> list[dict[str, Any]]:
        if self._file is None:
            return []
        start = self._file.tell()
        whole = self._file.read().rpartition(b"\n")[0]
        end = start + len(whole) + bool(whole)
        self._file.seek(end)
        return [_row_of(line) for line in whole.splitlines()]

    def _rest_of_another(self) -> list[dict[str, Any]]:
        """Goes on in the file that has the name now, behind the lines with which both files begin."""
        before, self._file = self._file, self._opened()
        if before is not None and self._file is not None:
            before.seek(0)
            kept = 0
            for line, same in zip(before, self._file, strict=False):
                if line != same or not line.endswith(b"\n"):
                    break
                kept += len(line)
            self._file.seek(kept)
            before.close()
        return self._rest()


def _row_of(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    row |= {name: float(text) for name, text in row.pop(MARKER, {}).items()}
    int(row["step"])
    return row


def _lines_and_rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = _row_of(line)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise RunError(
                    f"line {number} of {path} is not a row of metrics ({error!r}): the file was altered or "
                    "its disk is damaged. Remove that line, or move the file away; the checkpoints do not "
                    "depend on it"
                ) from None
            yield line, row


class LogFile:
    """Log of messages at `path`, each with its time in UTC, so that lines of several machines can be sorted.

    Whatever the terminal shows (`--quiet`, a closed window, a lost connection), this file has every message.
    """

    def __init__(self, path: Path | str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        # By line, so that a kill loses none; open as long as the run.
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._now = now

    def write(self, text: str) -> None:
        """Appends a message. Its further lines are indented, so each line that starts with a time is a message."""
        time = self._now().strftime("%Y-%m-%d %H:%M:%SZ")
        self._file.write(f"{time}  " + text.rstrip().replace("\n", "\n" + " " * (len(time) + 2)) + "\n")

    def close(self) -> None:
        self._file.close()
