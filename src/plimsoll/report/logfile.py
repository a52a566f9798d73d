"""`log.txt`: every message of a run with the time it was said, whatever the terminal showed.

`--quiet`, a closed terminal or a lost connection take nothing away from this file. Times are UTC, so that
lines of two machines, or of a night in which the clocks changed, stay in order.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LogFile:
    """Appends messages to `path` and hands each on to `tee` (a progress bar's `message`, usually)."""

    def __init__(
        self,
        path: Path | str,
        *,
        tee: Callable[[str], None] | None = None,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        # By line, so that a kill loses none; open as long as the run.
        self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._tee = tee
        self._now = now

    def write(self, text: str) -> None:
        """Further lines of one message are indented: each line that starts with a time is a message."""
        time = self._now().strftime("%Y-%m-%d %H:%M:%SZ")
        self._file.write(f"{time}  " + text.rstrip().replace("\n", "\n" + " " * (len(time) + 2)) + "\n")
        if self._tee is not None:
            self._tee(text)

    def close(self) -> None:
        self._file.close()
