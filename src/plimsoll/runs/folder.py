"""The run: a folder with recipe, plan, ledger, metrics and checkpoints. Running it again continues it.

    recipe.json plan.json data.json ledger.json metrics.jsonl log.txt checkpoints/ events.out.tfevents.* (TensorBoard)

Every file that is replaced is replaced whole (written beside, then renamed), so a kill leaves the old or the new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from plimsoll.errors import RunError

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
    "mlruns",
    "trackio",
)
"""How the names of what training writes begin."""


SEAL = "checksums.json"
SEALED = ("data.json", "tokenizer.json", "validation.npy")
"""What is made once, decides what is learned, and is compared with nothing else."""


class RunFolder:
    """Paths of one run, and its JSON files."""

    def __init__(self, path: Path | str) -> None:
        if "://" in str(path):
            raise RunError(f"{path} is an address, and a folder is needed here: copy the run into one, and name that")
        self.path = Path(path).expanduser().absolute()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def exists(self) -> bool:
        return (self.path / "recipe.json").exists()

    def create(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"--run {self.path} is a file: name a folder, new or of an earlier run")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise RunError(
                f"--run {self.path} cannot be made: {problem.strerror}. Name a folder you may write to"
            ) from None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a run: it has no {name}. `plimsoll runs` lists the runs here") from None
        except (ValueError, RecursionError) as problem:
            raise RunError(
                f"{path} is damaged ({problem}): restore it, or start a new run with another --run"
            ) from None

    def write(self, name: str, value: Any) -> None:
        replace_file(self.path / name, json.dumps(value, indent=2) + "\n")

    def seal(self) -> None:
        """Notes the checksums of what was prepared: a flipped bit in a tokenizer would be trained on silently."""
        self.write(SEAL, {name: _sha256(self.path / name) for name in SEALED if self.has(name)})

    def require_sealed(self) -> None:
        """RunError where what was prepared is not what it was. Runs of before there was a seal have none."""
        sealed = self.read(SEAL) if self.has(SEAL) else {}
        if not isinstance(sealed, dict):
            raise RunError(f"{self.path / SEAL} is damaged: restore it, or start a new run with another --run")
        for name, checksum in sealed.items():
            path = self.path / name
            if not path.is_file() or _sha256(path) != checksum:
                what = "has changed since the run was prepared" if path.is_file() else "is not there any more"
                raise RunError(
                    f"{path} {what} (its SHA-256 was {checksum[:12]}...): put the old file back to go on, or start a"
                    " new run with another --run"
                )

    def prepared(self) -> list[str]:
        """What was there before training, and the best so far: what another process needs to train the same run."""
        best = "checkpoints/best.json"
        found = [path.name for path in self.path.iterdir() if not path.name.startswith(OF_TRAINING)]
        return sorted(found) + ([best] if self.has(best) else [])

    def saved_steps(self) -> list[int]:
        names = (path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def is_trained_now(self) -> bool:
        """Whether a process trains there: its lock is tried, shared and unwritten, and given back at once."""
        try:
            descriptor = os.open(self.path / ".lock", os.O_RDONLY)
        except OSError:  # none, or a folder that is not ours to look into: whoever trains there, we cannot know
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(descriptor)
        return False

    def state(self, steps: int | None) -> str:
        """In words; `steps` are those of the whole run, where they are known."""
        if self.is_trained_now():
            return "training now"
        saved = max(self.saved_steps(), default=None)
        if saved is None:
            return "nothing saved"
        return "finished" if steps is not None and saved >= steps else f"stopped at step {saved:,}"

    def lock(self) -> int:
        """Held until the process ends, across `exec`. Two processes in one run would overwrite each other."""
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
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        os.set_inheritable(descriptor, True)
        return descriptor


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_file(path: Path, text: str) -> None:
    """Old or new, never half: written beside, flushed to disk, renamed."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
