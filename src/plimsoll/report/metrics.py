"""Files that a run appends to: its metrics (`metrics.jsonl`) and its messages (`log.txt`).

Metrics are one JSON object per logged step, in the order of the steps. The file survives a kill, and can be cut back to
a checkpoint:

    {"step": 20, "loss": 3.2, "step_seconds": 0.4, "elapsed_seconds": 8.1, "tokens_per_second": 38095.2, ...}

JSON has no NaN and no infinity, and many readers reject Python's bare `NaN`. Such a value is written as null, and
listed under `not_finite` in the same row; `read_rows` turns it back into a float:

    {"step": 40, "loss": null, "not_finite": {"loss": "nan"}}

A row is passed to the operating system before `log` returns, so SIGKILL loses no row. There is no fsync per row:
a power cut may lose the last seconds, which a resumed run writes again.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


def read_rows(path: Path | str, *, after: int = -1) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file that are of steps after a given one; none if there is no file.

    An incomplete last line is skipped; other damage raises RunError.
    """
    return (row for _, row in _lines_and_rows(Path(path)) if row["step"] > after)


class MetricsLog:
    """Log of metrics at `path`, which rows are appended to."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = open(path, "ab")  # noqa: SIM115 - lives as long as the run

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(encode_row(step, values).encode() + b"\n")
        self._file.flush()

    def cut_after(self, step: int) -> None:
        """Removes the rows of later steps, which a resumed run writes again, and an incomplete last line."""
        size = 0
        for line, row in _lines_and_rows(self.path):
            if row["step"] > step:
                break
            size += len(line)
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


class NewRows:
    """Rows that any process appends to a file of metrics from now on, also after a session has cut it back."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._position = self._size()

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the rows that were completed since the last call."""
        self._position = min(self._position, self._size())
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole + newline)
        return [_row_of(line) for line in whole.splitlines()]


def _row_of(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    row |= {name: float(text) for name, text in row.pop(MARKER, {}).items()}
    int(row["step"])
    return row


def _lines_and_rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = _row_of(line)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
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
