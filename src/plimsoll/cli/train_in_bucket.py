"""`plimsoll train RECIPE --run s3://...`: the same command in a folder here, watched, while its saves are sent.

Run as a module it is the process that is watched: it prepares, plans and trains as for any folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from plimsoll.processes.supervise import end_with, watched


def train_in_bucket(arguments: Sequence[str], address: str, *, quiet: bool) -> int:
    """The exit code of training; 3 where all was trained, and the bucket does not have it."""
    from plimsoll.runs.remote import BEHIND, mirrored, stop_training

    say = (lambda text: None) if quiet else (lambda text: print(text, flush=True))
    with mirrored(address, say, lost=stop_training) as mirror:
        command = [sys.executable, "-m", "plimsoll.cli.train_in_bucket", str(os.getpid()), str(mirror.run)]
        code, _ = watched([*command, *arguments])
    if mirror.behind is not None:
        print(f"error: {mirror.behind}", file=sys.stderr, flush=True)
        return code or BEHIND
    return code


def main(parent: str, here: str, arguments: list[str]) -> int:
    from plimsoll.cli.main import answered, show_anything
    from plimsoll.cli.train import train

    show_anything()
    end_with(int(parent))  # whoever sends what is saved
    return answered(lambda: train(arguments, here=here))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
