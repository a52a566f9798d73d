"""A file of TensorBoard events, written where the training loop stands.

The writer of tensorboardX has a thread and a queue of ten. On a full disk, or a clock that is put back by weeks, the
thread dies, and whoever writes the eleventh value then waits for ever: runs were found so (docs/log.md, "Torture").
Here what goes wrong is raised to who writes, and nothing is waited for.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 10
"""A kill loses no more than this; metrics.jsonl loses nothing."""


def messages() -> Any:
    """The protocol buffers of events; their classes are made when they are imported."""
    return importlib.import_module("tensorboardX.proto.event_pb2")


class EventFile:
    """Records as TensorBoard reads them: a length, the events, and a checksum of each."""

    def __init__(self, folder: Path) -> None:
        # The time in the name has seconds, and a restart may be faster: so has the process's number.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(folder / name, "ab")  # noqa: SIM115 - lives as long as the run
        self._flushed = time.monotonic()
        self.write(None, file_version="brain.Event:2")

    def write(self, step: int | None, **content: Any) -> None:
        """An event, as the fields of its protocol buffer. Raises OSError where it cannot be written."""
        from tensorboardX.record_writer import masked_crc32c

        event = messages().Event(wall_time=time.time(), step=step, **content).SerializeToString()
        length = struct.pack("<Q", len(event))
        checksums = (struct.pack("<I", masked_crc32c(part)) for part in (length, event))
        try:
            self._file.write(length + next(checksums) + event + next(checksums))
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """What cannot be written any more is let go: the interpreter would speak of it at its end."""
        with contextlib.suppress(OSError):
            self._file.close()
