"""The commands, called as a user does, in processes of their own; and the options of tiny runs."""

import json
import os
import shlex
import subprocess
import sys

TINY = shlex.split(
    "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4 --steps 6"
    " --shuffle-buffer-size 16 --micro-batch 4 --remat none --loss-chunk 0 --precision float32"
)
"""Every lever pinned, so that little is compiled."""

PUZZLES = shlex.split(
    "--width 32 --heads 1 --batch-size 8 --steps 4 --warmup-steps 2 --validation-examples 20"
    " --micro-batch 8 --remat none --precision float32 --prefetch 0 --async-save False"
)
"""Every lever that a recipe of puzzles has, pinned."""


def plimsoll(*arguments, timeout=600, cwd=None):
    """The command in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "plimsoll.cli.main",
        *(word if isinstance(word, bytes) else str(word) for word in arguments),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )


def answer(*arguments):
    """What `--json` printed: exactly one object, on one line."""
    done = plimsoll(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    return json.loads(done.stdout)
