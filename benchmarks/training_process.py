"""A `plimsoll train` command run and watched from outside: how it ended, and what its run says of itself.

The command line turns into the training process by exec, so its process id
is the one to watch, and `VmHWM`, which the run writes into its ledger, starts from nothing there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 2**20
PLIMSOLL = [sys.executable, "-m", "plimsoll.cli.main"]
SOURCE = Path(__file__).resolve().parents[1] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
"""In which the command line is this checkout's, whichever is installed."""
GROUPS = Path("/sys/fs/cgroup/memory")
PREPARED = ("recipe.json", "plan.json", "data.json", "tokenizer.json", "validation.npy")
"""Of a run folder, what is there before its first step."""


@dataclass(frozen=True)
class Ended:
    """A process that is over."""

    code: int
    said: str
    """Standard error."""


@dataclass(frozen=True)
class Trained:
    """Record that a finished run wrote about itself."""

    planned: Mapping[str, Any]
    ledger: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def predicted(self) -> int:
        return self.ledger["predicted"]["peak_bytes"]

    @property
    def peak(self) -> int:
        """`VmHWM` in bytes, the largest of its sessions."""
        return self.ledger["measured"]["peak_bytes"]

    @property
    def loss(self) -> float:
        return next(row["loss"] for row in reversed(self.rows) if "loss" in row)


def plimsoll(*words: Any) -> str:
    """Returns what the command printed; a refusal ends this program with its words."""
    command = [*PLIMSOLL, *map(str, words)]
    done = subprocess.run(command, check=False, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def watch(command: Sequence[str], *, seconds: float) -> Ended:
    """Runs it in a session of its own, with every process it starts; what takes longer than `seconds` is killed."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        late = False
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:  # the children too; where the command itself is over, they are usually gone with it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        said = errors.read().strip()
    return Ended(process.returncode, f"took longer than {seconds:.0f} s" if late else said)


def trained(run: Path) -> Trained:
    ledger, planned = (json.loads((run / name).read_text()) for name in ("ledger.json", "plan.json"))
    return Trained(planned, ledger, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])


def trained_within(words: Sequence[Any], memory: int | str, run: Path) -> Trained:
    """Trains under a budget, each step logged; where it is refused, under what the refusal advises.

    Raises SystemExit with the words of any other failure.
    """

    def attempt(budget: int | str) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(run, ignore_errors=True)
        command = [*PLIMSOLL, "train", *map(str, words), f"--memory={budget}", f"--run={run}", "--log-every=1"]
        return subprocess.run([*command, "--quiet"], env=ENVIRONMENT, capture_output=True, text=True)

    done = attempt(memory)
    if done.returncode and (advised := re.search(r"you could: --memory (\w+)", done.stderr)):
        print(f"{memory} refused; taking {advised[1]}", file=sys.stderr)
        done = attempt(advised[1])
    if done.returncode:
        raise SystemExit(f"error: {done.stderr[-3000:]}")
    return trained(run)


def prepared_copy(run: Path, to: Path) -> Path:
    """The run again before its first step: the same command there neither prepares nor plans anew."""
    to.mkdir(parents=True)
    for name in PREPARED:
        if (run / name).exists():
            shutil.copy2(run / name, to / name)
    return to


def plan_words(plan: Mapping[str, Any]) -> str:
    """`8x4 block 256 bs`: micro-batch x accumulation, remat, loss chunk, precision, save (a: beside training); then
    `l2` for an update layer by layer in two backward passes."""
    split = f"{plan['micro_batch']}x{plan['accumulation']}"
    layers = f" l{plan['layerwise']}" if plan.get("layerwise") else ""
    save = "a" if plan["async_save"] else "s"
    return f"{split} {plan['remat']} {plan['loss_chunk']} {plan['precision'][0]}{save}{layers}"


class NoGroup(Exception):
    """Not root, no control groups of version 1, or none of memory."""


class MemoryGroup:
    """A memory control group (v1) that kills what goes over `limit` bytes. Making one needs root.

    A group does not charge for file-backed pages, or takes them back.
    """

    def __init__(self, limit: int) -> None:
        self.path = GROUPS / f"plimsoll-proof-{os.getpid()}"
        self.limit = limit

    def __enter__(self) -> MemoryGroup:
        """Raises NoGroup where groups cannot be made."""
        try:
            self.path.mkdir()
            (self.path / "memory.limit_in_bytes").write_text(str(self.limit))
        except OSError as problem:
            raise NoGroup(f"no memory control group can be made here ({problem})") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.path.rmdir()

    @property
    def entering(self) -> list[str]:
        """Goes before a command, where a fork of this process is not safe: it has threads."""
        return ["/bin/sh", "-c", f'echo $$ > "{self.path / "cgroup.procs"}"; exec "$@"', "sh"]

    def squeeze(self, limit: int) -> bool:
        """Another limit; False where the kernel cannot take so much back."""
        try:
            (self.path / "memory.limit_in_bytes").write_text(str(limit))
        except OSError:
            return False
        return True

    def usage(self) -> int:
        """Bytes that are charged now."""
        return int((self.path / "memory.usage_in_bytes").read_text())
