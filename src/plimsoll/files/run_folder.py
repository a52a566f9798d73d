"""Folder of a run, with recipe, plan, ledger, metrics and checkpoints. The command that made it continues it.

    recipe.json plan.json data.json ledger.json metrics.jsonl log.txt checkpoints/ events.out.tfevents.* (TensorBoard)

A file is replaced as a whole (a new file is written and renamed), so a kill leaves the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.errors import CheckpointError, PlimsollError, RunError, as_written
from plimsoll.files.manifest import checksum, damage, is_finished, replace_file
from plimsoll.planned import Planned, RunLedger
from plimsoll.values import from_json

OF_TRAINING = (
    ".",
    "checkpoints",
    "ledger",
    "metrics",
    "log.txt",
    "events.out",
    "profile",
    "overruns",
    "nan.txt",
    "wandb",
    "mlflow",  # the file with its id
    "mlruns",
    "trackio",
)
"""Prefixes of the names of files that training writes, and preparation does not."""

STEP = "step-"
"""Beginning of the names of checkpoints."""
POSITION = "position.json"
MADE_ANEW = {
    "ledger.json": "remove it, and the next session begins another",
    "overruns.json": "remove it, and how much the run's plan has to leave free is found again",
}
"""Files that a run can do without, and what to do about a damaged one."""
SEAL = "checksums.json"
SEALED = ("data.json", "tokenizer.json", "validation.npy")
"""Prepared files that decide what is learned, and that no other check covers."""


@dataclass(frozen=True)
class Position:
    """What a checkpoint says beside its arrays. It is read without JAX."""

    step: int
    loader: dict[str, Any]
    """Where the data goes on."""
    plan: dict[str, Any]
    """Levers by which it was trained, as plan.json holds them."""
    leaves: Sequence[tuple[str, Sequence[int], str]]
    """Path, shape and dtype of each array, in the order of the state."""

    @classmethod
    def read(cls, checkpoint: Path) -> Position:
        """Reads the position of the checkpoint in a folder.

        Raises:
            CheckpointError: It is damaged, or of another version.
        """
        try:
            return from_json(cls, json.loads((checkpoint / POSITION).read_text()), POSITION)
        except (FileNotFoundError, TypeError, ValueError):
            raise CheckpointError(
                f"{checkpoint / POSITION} is not as this version of plimsoll writes it: it was altered, or saved by"
                " another version. Put a copy of the checkpoint back, or name another --run"
            ) from None


class RunFolder:
    """Folder of one run: its paths, its JSON files, its lock."""

    def __init__(self, path: Path | str) -> None:
        if "://" in str(path):
            raise RunError(f"{path} is an address, and a folder is needed here: copy the run into one, and name that")
        self.path = Path(path).expanduser().absolute()
        self.checkpoints = (self.path / "checkpoints").resolve()
        self.metrics = self.path / "metrics.jsonl"

    def exists(self) -> bool:
        """Returns whether there is a run in the folder."""
        return (self.path / "recipe.json").exists()

    def create(self) -> None:
        """Makes the folder, if need be. Raises RunError if that is impossible."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"--run {self.path} is a file: name a folder, new or of an earlier run")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RunError(
                f"--run {self.path} cannot be made: {problem.strerror}. Name a folder you may write to"
            ) from None

    def has(self, name: str) -> bool:
        """Returns whether the folder has a file."""
        return (self.path / name).exists()

    def read(self, name: str) -> dict[str, Any]:
        """Returns the content of a JSON file. Raises RunError if it is missing or damaged."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a run: it has no {name}. `plimsoll runs` lists the runs here") from None
        except ValueError as problem:
            raise self.damaged(name, problem) from None

    def damaged(self, name: str, problem: Exception) -> RunError:
        """Returns the error to raise for a file whose content is not what this program wrote."""
        return RunError(f"{self.path / name} is damaged ({problem}): restore it, or {_instead_of(self, name)}")

    def planned(self) -> Planned:
        """Returns the plan of the run. Raises RunError if it is damaged or missing."""
        content = self.read("plan.json")
        try:
            with as_written(str(self.path / "plan.json")):
                return Planned.from_dict(content)
        except PlimsollError as problem:
            raise RunError(f"{problem}, or {_instead_of(self, 'plan.json')}") from None

    def ledger(self) -> RunLedger:
        """Returns the ledger of the sessions that have ended. Raises RunError if it is damaged or missing."""
        content = self.read("ledger.json")
        try:
            return from_json(RunLedger, content, "ledger.json")
        except TypeError as problem:
            raise self.damaged("ledger.json", problem) from None

    def write(self, name: str, value: Any) -> None:
        """Replaces a JSON file."""
        replace_file(self.path / name, json.dumps(value, indent=2) + "\n")

    def seal(self) -> None:
        """Notes the checksums of the prepared files: a flipped bit in a tokenizer would be trained on silently."""
        self.write(SEAL, {name: checksum(self.path / name) for name in SEALED if self.has(name)})

    def require_sealed(self) -> None:
        """Raises RunError if a prepared file is missing or has changed."""
        sealed = self.read(SEAL) if self.has(SEAL) else {}
        for name, expected in sealed.items():
            path = self.path / name
            if not path.is_file() or checksum(path) != expected:
                what = "has changed since the run was prepared" if path.is_file() else "is not there any more"
                raise RunError(
                    f"{path} {what} (its SHA-256 was {expected[:12]}...): put the old file back to go on, or start a"
                    " new run with another --run"
                )

    def saved_steps(self) -> list[int]:
        """Returns the steps of the checkpoints that were finished, in ascending order."""
        folders = [folder for folder in self.checkpoints.glob(f"{STEP}*") if is_finished(folder)]
        names = [folder.name.removeprefix(STEP) for folder in folders]
        return sorted(int(name) for name in names if name.isdigit())

    def newest_whole(self) -> tuple[int, list[str]]:
        """Returns the step of the newest checkpoint that is as it was written, 0 if none is, and a note about each
        newer one. Reads all of their bytes."""
        notes: list[str] = []
        for step in reversed(self.saved_steps()):
            problem = damage(self.checkpoint(step))
            if problem is None:
                return step, notes
            notes.append(f"checkpoint {step} is damaged ({problem})")
        return 0, notes

    def checkpoint(self, step: int) -> Path:
        """Returns the folder of the checkpoint of a step."""
        return self.checkpoints / f"{STEP}{step:08d}"

    def position(self, step: int) -> Position:
        """Returns what the checkpoint of a step says beside its arrays."""
        return Position.read(self.checkpoint(step))

    def trained_by(self) -> dict[str, Any]:
        """Returns the levers, as plan.json holds them, by which the newest checkpoint was trained.

        Empty if there is none, or none that says so. The plan may be another one by now: the process that made it was
        killed before it took a step.
        """
        for step in reversed(self.saved_steps()):
            with contextlib.suppress(OSError, ValueError, CheckpointError):
                return dict(self.position(step).plan)
        return {}

    def require_saved(self) -> None:
        """Raises CheckpointError if the run has no checkpoint."""
        if not self.saved_steps():
            raise CheckpointError(
                f"{self.path} has no checkpoint yet: one is saved every --save-every steps and when training stops"
            )

    def is_trained_now(self) -> bool:
        """Returns whether a process trains there. The lock is tried, without writing to it, and released at once."""
        try:
            with open(self.path / ".lock", "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no lock file, one that we may not read, or no locks: who trains there cannot be noticed
            return False
        return False

    def state(self, steps: int | None) -> str:
        """Describes how far the run is, in a few words.

        Args:
            steps: Length of the whole run; None if that is not known.
        """
        if self.is_trained_now():
            return "training now"
        saved = max(self.saved_steps(), default=None)
        if saved is None:
            return "nothing saved"
        if steps is not None and saved >= steps:
            return "finished"

        # Whether `--patience` has ended it. A ledger that cannot be read says nothing.
        with contextlib.suppress(RunError):
            early = self.ledger().ended_early
            if early is not None and early.step == saved:
                return f"stopped early at step {saved:,}"
        return f"stopped at step {saved:,}"

    def lock(self) -> int:
        """Takes the lock of the run, so that no two processes write to it. Returns its file descriptor.

        It is held until the process ends, also across `exec`. Raises RunError if another process holds it.
        """
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if not isinstance(problem, BlockingIOError):
                os.close(descriptor)
                raise RunError(
                    f"{self.path} lies on a file system that gives no locks ({problem.strerror}), so that two commands"
                    " could write one run: name a --run on another one"
                ) from None
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise RunError(
                f"{self.path} is being trained by {holder}: wait for it, stop it, or name another --run"
            ) from None
        note_holder(descriptor)
        os.set_inheritable(descriptor, True)
        return descriptor


def _instead_of(folder: RunFolder, name: str) -> str:
    """Returns what to do where a file is damaged and there is no copy of it."""
    if name != "plan.json":
        return MADE_ANEW.get(name, "start a new run with another --run")
    saved = max(folder.saved_steps(), default=None)
    kept = f"its checkpoints stay, and it goes on from step {saved:,}" if saved else "it has saved nothing yet"
    return f"add --replan to the command that trains the run, which makes another plan: {kept}"


def note_holder(lock: int) -> None:
    """Writes into a run's lock file that this process holds it: a process that inherited it calls this, too."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
