"""The commands, called as a user does, in processes of their own or in the test's; and the options of tiny runs."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from unittest import mock

from plimsoll import worker
from plimsoll.cli.main import main
from plimsoll.errors import PlimsollError
from plimsoll.processes import request

TINY = shlex.split(
    "--width 32 --layers 2 --heads 1 --vocab-size 300 --seq-len 32 --batch-size 4 --steps 6"
    " --shuffle-buffer-size 16 --micro-batch 4 --remat none --loss-chunk 0 --precision float32"
)
"""Every lever pinned, so that little is compiled."""

PUZZLES = shlex.split(
    "--width 32 --layers 1 --heads 1 --low-cycles 1 --batch-size 8 --steps 4 --warmup-steps 2 --validation-examples 20"
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


IN_PROCESS = ("evaluate", "export", "fingerprint", "inspect", "rank", "report", "runs", "sample", "solve")
"""Commands that only look at a run: nothing of what they answer depends on the process that answers it."""


def called(*arguments, cwd=None):
    """The same in the test's process, and so are the workers that the command starts: JAX is imported already.

    Only for IN_PROCESS. `evaluate`, `report` and `rank` have a test that starts them as a user does.
    """
    words = [os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in arguments]
    assert words[0] in IN_PROCESS
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(workers_here())
        if words[0] == "report":  # a process's bound stays for good
            stack.enter_context(mock.patch("plimsoll.inference.showcase.bound_memory"))
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        try:
            code = main(words)
        except SystemExit as stopped:  # of --help
            code = stopped.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def workers_here():
    """A patch under which workers answer in the test's process: JAX is imported already."""
    return mock.patch.object(request, "subprocess", _Workers())


class _Workers:
    """`subprocess` for `processes/request.py`: what a worker would answer, through the same JSON."""

    PIPE = subprocess.PIPE

    def run(self, command, *, input, **_):
        assert command[1:3] == ["-m", "plimsoll.worker"]
        try:
            reply = {"answer": worker.answer(command[3], json.loads(input))}
        except PlimsollError as problem:
            reply = problem.reply()
        return subprocess.CompletedProcess(command, 0, json.dumps(reply), None)


def answer(*arguments, by=None):
    """What `--json` printed: exactly one object, on one line. `by`: `plimsoll`, for a process of its own."""
    by = by or (called if arguments[0] in IN_PROCESS else plimsoll)
    done = by(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    return json.loads(done.stdout)
