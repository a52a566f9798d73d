"""Process that uploads a run to its bucket every minute and at the end: `python -m plimsoll.files.sender ADDRESS`.

The process is separate from training: its memory does not count against the budget, and no step waits for the network.
It prints a line of JSON after downloading the run, and another at the end or after an error. It ends when it reads
`end` from standard input, or when standard input closes because the parent process was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from plimsoll.errors import PlimsollError, RunError, StoppedError, raise_refusal
from plimsoll.files.bucket import Bucket, Say, TakenError
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.interruption import NUMBERS

PROGRAM = ["-m", "plimsoll.files.sender"]
"""Arguments of Python that start the uploading process."""
SEND_SECONDS = 60
"""Seconds between two uploads."""
PATIENCE_SECONDS = 60
"""Longest wait, in seconds, for training to save and end after the supervising process was killed."""
BEHIND = 3
"""Exit code of a command whose training ended normally, but whose final upload failed."""


class Sender:
    """Starts and controls the process that uploads a run during its training in `folder`."""

    def __init__(self, address: str, say: Say) -> None:
        self.address = address
        self.say = say
        self.behind: str | None = None
        """Reason why the bucket is not up to date; None if it is up to date."""
        command = [sys.executable, *PROGRAM, address]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0)

        # Wait for the download, so that an error comes before data is prepared.
        try:
            reply = self._reply()
        except KeyboardInterrupt:
            self._process.kill()
            raise
        raise_refusal(reply)
        self.folder: str = reply["folder"]
        for message in reply["messages"]:
            say(message)
        say(f"{address} is trained in {self.folder}, and sent every minute")

    def require_running(self) -> None:
        """Raises StoppedError if the uploading process has ended, because of an error or a kill."""
        if self._process.poll() is not None:
            raise StoppedError(f"{self._reply()['refused']}. The run is whole in {self.folder}")

    def finish(self) -> None:
        """Waits for the final upload and the end of the uploading process. Sets `behind` if the upload fails."""
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as words:
                words.write("end")
            reason = self._reply().get("refused")
        except KeyboardInterrupt:
            self._process.kill()
            reason = "interrupted while it was sent"
        if reason is None:
            self.say(f"{self.address} is up to date")
        else:
            self.behind = (
                f"{self.address} is behind what was trained: {reason}. The run is whole in {self.folder}: the same"
                " command, on this machine, uploads it and continues"
            )

    def _reply(self) -> dict[str, Any]:
        """Waits for the next line of JSON from the process. Returns an error if the process ended without a line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        return PlimsollError(f"the process that sends {self.address} ended with code {code}").reply()


@contextlib.contextmanager
def sent(address: str, say: Say) -> Iterator[Sender]:
    """Context manager that uploads changes of `Sender.folder` in its `with` block. A failure sets `Sender.behind`."""
    sender = Sender(address, say)
    try:
        yield sender
    finally:
        sender.finish()


def main(address: str) -> int:
    """Downloads the run from its bucket, and uploads changes until training ends. Returns the exit code."""
    for number in NUMBERS:  # the parent process decides on the end
        signal.signal(number, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of drivers must not mix with the replies

    code = 0
    reply = {}
    try:
        bucket = Bucket(address)
        with bucket.lock() as is_free:
            if not is_free:
                raise RunError(
                    f"{address} is being trained, sent or fetched by another process on this machine ({bucket.folder}):"
                    " wait for it, stop it, or name another --run"
                )
            messages: list[str] = []
            bucket.take(messages.append)
            replies.write(json.dumps({"folder": str(bucket.folder), "messages": messages}) + "\n")
            _send_until_the_end(bucket)
    except PlimsollError as problem:
        code = problem.exit_code
        reply = problem.reply()
    with contextlib.suppress(BrokenPipeError):  # the parent was killed
        replies.write(json.dumps(reply) + "\n")
    return code


def _send_until_the_end(bucket: Bucket) -> None:
    """Uploads the run every SEND_SECONDS until standard input has data or closes, and once more at the end."""
    # Upload while training goes on. Of consecutive failed uploads report only the first.
    failure = None
    while not select.select([sys.stdin], [], [], SEND_SECONDS)[0]:
        try:
            bucket.send()
        except TakenError:
            raise
        except PlimsollError as problem:
            if failure is None:
                _warn(f"{problem}. Training goes on in {bucket.folder}; the upload is tried again every minute")
            failure = problem
            continue
        if failure is not None:
            _warn(f"{bucket.address} is up to date again")
            failure = None

    # If the parent was killed, wait until the training process has saved and ended.
    if not sys.stdin.read():
        deadline = time.monotonic() + PATIENCE_SECONDS
        while RunFolder(bucket.folder).is_trained_now() and time.monotonic() < deadline:
            time.sleep(0.2)
    bucket.send()
    bucket.release()


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
