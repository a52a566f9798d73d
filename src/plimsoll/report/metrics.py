"""Files that a run appends to: metrics (`metrics.jsonl`) and messages (`log.txt`).

`metrics.jsonl` has one JSON object per logged step, in the order of steps:

    {"step": 20, "loss": 3.2, "step_seconds": 0.4, "elapsed_seconds": 8.1, "tokens_per_second": 38095.2, ...}

JSON has no NaN and no infinity. Such a value is written as null, and listed under `not_finite` in the same row.
`read_rows` converts it back to a float:

    {"step": 40, "loss": null, "not_finite": {"loss": "nan"}}

`MetricsLog.log` passes a row to the operating system before it returns, so SIGKILL loses no row. Rows are not flushed
to disk: a power cut may lose the last seconds. A resumed run removes rows of steps after its checkpoint, and repeats
the steps.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plimsoll.errors import RunError

MARKER = "not_finite"
"""Key of a row under which its NaN and infinite values are listed."""


def encode_row(step: int, values: Mapping[str, Any]) -> str:
    """Encodes a row of metrics as a line of JSON. Scalars of NumPy and JAX are converted to Python numbers."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}
    marked = {
        name: str(value) for name, value in plain.items() if isinstance(value, float) and not math.isfinite(value)
    }
    row = {"step": int(step), **plain, **dict.fromkeys(marked)}
    return json.dumps(row | {MARKER: marked} if marked else row, allow_nan=False)


def with_tables(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Collects numbered metrics (`NAME_0`, `NAME_1`, ...) into one dictionary per NAME, from number to value.

    Args:
        row: Metrics of a row.
        names: Names of the metrics to collect.
    """
    columns: dict[str, Any] = {}
    for name, value in row.items():
        stem, _, number = name.rpartition("_")
        if stem.removeprefix("validation_") in names:
            columns.setdefault(stem, {})[number] = float(value) if math.isfinite(value) else None
        else:
            columns[name] = value
    return columns


def read_rows(path: Path | str, *, after: int = -1) -> Iterator[dict[str, Any]]:
    """Yields the rows of a metrics file; none if there is no file. Skips an incomplete last line.

    Args:
        path: Path of the file.
        after: Step. Only rows of later steps are yielded.

    Raises:
        RunError: A line is not a row of metrics.
    """
    return (row for _, row in _lines_and_rows(Path(path)) if row["step"] > after)


class MetricsLog:
    """Metrics file at `path`, opened for appending."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = open(path, "ab")  # noqa: SIM115 - lives as long as the run

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the row of a step."""
        self._file.write(encode_row(step, values).encode() + b"\n")
        self._file.flush()

    def cut_after(self, step: int) -> None:
        """Removes an incomplete last line and the rows of steps after `step`, which a resumed run repeats."""
        size = 0
        for line, row in _lines_and_rows(self.path):
            if row["step"] > step:
                break
            size += len(line)
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


class NewRows:
    """Reader of the rows that any process appends to a metrics file after this object is created.

    A process that resumes the run may remove rows from the file meanwhile.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._position = self._size()

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the complete rows that were appended since the last call."""
        self._position = min(self._position, self._size())
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._position += len(whole + newline)
        return [_row_of(line) for line in whole.splitlines()]


def _row_of(line: bytes) -> dict[str, Any]:
    """Decodes a line of a metrics file."""
    row = json.loads(line)
    row |= {name: float(text) for name, text in row.pop(MARKER, {}).items()}
    int(row["step"])
    return row


def _lines_and_rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields each complete line of a metrics file with its row. Raises RunError if a line is not a row."""
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
    """Message log at `path`, with the UTC time of each message, so that logs of several machines can be merged.

    The file has all messages, even if the terminal is closed or `--quiet` suppresses them.
    """

    def __init__(self, path: Path | str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        # Line-buffered, so that a kill loses no message. Open until the end of the run.
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._now = now

    def write(self, text: str) -> None:
        """Appends a message with the time. All lines of the message after its first are indented."""
        time = self._now().strftime("%Y-%m-%d %H:%M:%SZ")
        self._file.write(f"{time}  " + text.rstrip().replace("\n", "\n" + " " * (len(time) + 2)) + "\n")

    def close(self) -> None:
        self._file.close()
