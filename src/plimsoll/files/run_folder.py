"""The folder of a run, with recipe, plan, ledger, metrics and checkpoints.

    recipe.json plan.json data.json ledger.json metrics.jsonl log.txt checkpoints/ events.out.tfevents.* (TensorBoard)

The command that created the folder also continues the run. JSON files are replaced atomically, so that a kill leaves
the old file or the new one.
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
    "mlflow",  # the file with the run's id in MLflow
    "mlruns",
    "trackio",
)
"""Prefixes of the names of files that training writes. All other files are written before training."""

STEP = "step-"
"""Prefix of the names of checkpoints."""
POSITION = "position.json"
"""Name of the file in a checkpoint's folder that has the checkpoint's `Position`."""
MADE_ANEW = {
    "ledger.json": "remove it, and the next session begins another",
    "overruns.json": "remove it, and the next overrun determines the plan's safety margin again",
}
"""Map from the name of a file that a run can do without to advice for the user if the file is damaged."""
SEAL = "checksums.json"
"""Name of the run folder's file with the checksums of SEALED files."""
SEALED = ("data.json", "tokenizer.json", "validation.npy")
"""Files that are written before training, that training depends on, and that no other checksum covers."""


@dataclass(frozen=True)
class Position:
    """Content of a checkpoint besides its arrays: step, position in the data, plan, and shapes of the arrays.

    It is read without importing JAX.
    """

    step: int
    """Number of optimizer steps before the checkpoint."""
    loader: dict[str, Any]
    """State of the data loader, from `types.Source.state`."""
    plan: dict[str, Any]
    """Memory-saving options that the checkpoint was trained with, as in plan.json."""
    leaves: Sequence[tuple[str, Sequence[int], str]]
    """Path, shape and dtype of each array, in the order of the training state's leaves."""

    @classmethod
    def read(cls, checkpoint: Path) -> Position:
        """Reads the file position.json of a checkpoint.

        Args:
            checkpoint: Folder of the checkpoint.

        Raises:
            CheckpointError: The file is damaged, or was written by another version of plimsoll.
        """
        try:
            return from_json(cls, json.loads((checkpoint / POSITION).read_text()), POSITION)
        except (FileNotFoundError, TypeError, ValueError):
            raise CheckpointError(
                f"{checkpoint / POSITION} is not as this version of plimsoll writes it: it was altered, or saved by"
                " another version. Put a copy of the checkpoint back, or name another --run"
            ) from None


class RunFolder:
    """The folder of one run: paths, JSON files and lock."""

    def __init__(self, path: Path | str) -> None:
        if "://" in str(path):
            raise RunError(f"{path} is an address, and a folder is needed here: copy the run into a folder and name it")
        self.path = Path(path).expanduser().absolute()
        self.checkpoints = (self.path / "checkpoints").resolve()
        self.metrics = self.path / "metrics.jsonl"

    def exists(self) -> bool:
        """Returns True if the folder has a run."""
        return (self.path / "recipe.json").exists()

    def create(self) -> None:
        """Creates the folder, unless it exists. Raises RunError if it cannot be created."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"--run {self.path} is a file: name a folder, new or of an earlier run")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RunError(
                f"--run {self.path} cannot be made: {problem.strerror}. Name a folder you may write to"
            ) from None

    def has(self, name: str) -> bool:
        """Returns True if the folder has a file or a folder of this name."""
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
        """Returns the RunError about a damaged file, with advice.

        Args:
            name: Name of the file.
            problem: Error that reading the file raised.
        """
        return RunError(f"{self.path / name} is damaged ({problem}): restore it, or {_instead_of(self, name)}")

    def planned(self) -> Planned:
        """Returns the plan of the run. Raises RunError if plan.json is damaged or missing."""
        content = self.read("plan.json")
        try:
            with as_written(str(self.path / "plan.json")):
                return Planned.from_dict(content)
        except PlimsollError as problem:
            raise RunError(f"{problem}, or {_instead_of(self, 'plan.json')}") from None

    def ledger(self) -> RunLedger:
        """Returns the predicted and measured bytes of the run. Raises RunError if ledger.json is damaged or missing."""
        content = self.read("ledger.json")
        try:
            return from_json(RunLedger, content, "ledger.json")
        except TypeError as problem:
            raise self.damaged("ledger.json", problem) from None

    def write(self, name: str, value: Any) -> None:
        """Writes a JSON file, replacing an existing one atomically."""
        replace_file(self.path / name, json.dumps(value, indent=2) + "\n")

    def seal(self) -> None:
        """Records the checksums of SEALED files, so that a flipped bit in a tokenizer is noticed."""
        self.write(SEAL, {name: checksum(self.path / name) for name in SEALED if self.has(name)})

    def require_sealed(self) -> None:
        """Raises RunError if a SEALED file is missing, or differs from its recorded checksum."""
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
        """Returns the steps of the complete checkpoints (those with a manifest), in ascending order."""
        folders = [folder for folder in self.checkpoints.glob(f"{STEP}*") if is_finished(folder)]
        names = [folder.name.removeprefix(STEP) for folder in folders]
        return sorted(int(name) for name in names if name.isdigit())

    def newest_whole(self) -> tuple[int, list[str]]:
        """Returns the step of the newest undamaged checkpoint, and notes about newer checkpoints, which are damaged.

        The step is 0 if no checkpoint is undamaged. Reads all bytes of the newer checkpoints and of the undamaged one.
        """
        notes: list[str] = []
        for step in reversed(self.saved_steps()):
            problem = damage(self.checkpoint(step))
            if problem is None:
                return step, notes
            notes.append(f"checkpoint {step} is damaged ({problem})")
        return 0, notes

    def checkpoint(self, step: int) -> Path:
        """Returns the folder of the checkpoint that was saved at a step."""
        return self.checkpoints / f"{STEP}{step:08d}"

    def position(self, step: int) -> Position:
        """Returns the `Position` of the checkpoint that was saved at a step."""
        return Position.read(self.checkpoint(step))

    def trained_by(self) -> dict[str, Any]:
        """Returns the memory-saving options that the newest readable checkpoint was trained with; empty without one.

        They differ from plan.json if a process was killed after it made another plan and before it saved a checkpoint.
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
        """Returns True if a process is training the run, which holds its lock. Does not keep the lock."""
        try:
            with open(self.path / ".lock", "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no lock file, no permission to read it, or a file system without locks
            return False
        return False

    def state(self, steps: int | None) -> str:
        """Returns a short description of the run's state, like `finished` or `stopped at step 120`.

        Args:
            steps: Planned optimizer steps of the run; None if unknown.
        """
        if self.is_trained_now():
            return "training now"
        saved = max(self.saved_steps(), default=None)
        if saved is None:
            return "nothing saved"
        if steps is not None and saved >= steps:
            return "finished"

        # The ledger says whether --patience has ended the run early. A damaged ledger is ignored.
        with contextlib.suppress(RunError):
            early = self.ledger().ended_early
            if early is not None and early.step == saved:
                return f"stopped early at step {saved:,}"
        return f"stopped at step {saved:,}"

    def lock(self) -> int:
        """Takes the lock of the run, so that only one process writes to it. Returns the lock's file descriptor.

        The process holds the lock until it ends, even if `exec` replaces its program.

        Raises:
            RunError: Another process holds the lock, or the file system has no locks.
        """
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if not isinstance(problem, BlockingIOError):
                os.close(descriptor)
                raise RunError(
                    f"{self.path} is on a file system without locks ({problem.strerror}), so that two commands could"
                    " write one run: name a --run on another file system"
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
    """Returns advice for a user who cannot restore a damaged file from a copy."""
    if name != "plan.json":
        return MADE_ANEW.get(name, "start a new run with another --run")
    saved = max(folder.saved_steps(), default=None)
    kept = f"its checkpoints stay, and it goes on from step {saved:,}" if saved else "it has saved nothing yet"
    return f"add --replan to the command that trains the run, which makes another plan: {kept}"


def note_holder(lock: int) -> None:
    """Writes this process's id and host into a run's lock file, for the messages of other processes.

    A process that inherits the lock also calls this function.

    Args:
        lock: File descriptor of the lock file.
    """
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
