"""The process that sends a run to its bucket once a minute, and at the end: `python -m plimsoll.files.sender ADDRESS`.

It is beside the budget, and no step waits for the network. It prints one line of JSON once the run is fetched, or
refused, and one at the end. It ends when its standard input says `end`, or closes because its parent was killed.
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
SEND_SECONDS = 60
PATIENCE_SECONDS = 60
"""Time that a training process has to save and end after the process that supervised it was killed."""
BEHIND = 3
"""Exit code of a session that was trained to its end, and could not be sent."""


class Sender:
    """Process that sends a run while it is trained in `folder`."""

    def __init__(self, address: str, say: Say) -> None:
        self.address = address
        self.say = say
        self.behind: str | None = None
        """Reason why the address does not have all that was trained; None if it does."""
        command = [sys.executable, *PROGRAM, address]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0)

        # What is refused is refused before anything is prepared.
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
        """Raises StoppedError once it sends no more: the run was taken over, or the process was killed."""
        if self._process.poll() is not None:
            raise StoppedError(f"{self._reply()['refused']}. What was trained is whole in {self.folder}")

    def finish(self) -> None:
        """Has the rest sent. Sets `behind` if that fails."""
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
                f"{self.address} is behind what was trained: {reason}. It is whole in {self.folder}: the same command,"
                " on this machine, sends it and goes on"
            )

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        return PlimsollError(f"the process that sends {self.address} ended with code {code}").reply()


@contextlib.contextmanager
def sent(address: str, say: Say) -> Iterator[Sender]:
    """Sends what is saved in `.folder` until the end of the block. Afterwards `.behind` says whether that failed."""
    sender = Sender(address, say)
    try:
        yield sender
    finally:
        sender.finish()


def main(address: str) -> int:
    """Fetches the run of an address, and sends it until the end. Returns the exit code."""
    for number in NUMBERS:  # its parent says when to end
        signal.signal(number, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what drivers print is no reply

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
    # A failure is said once, and does not end training.
    failure = None
    while not select.select([sys.stdin], [], [], SEND_SECONDS)[0]:
        try:
            bucket.send()
        except TakenError:
            raise
        except PlimsollError as problem:
            if failure is None:
                _warn(f"{problem}. Training goes on in {bucket.folder}; it is tried again every minute")
            failure = problem
            continue
        if failure is not None:
            _warn(f"{bucket.address} is up to date again")
            failure = None

    # Where the parent was killed, the process that trains still saves and ends.
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
