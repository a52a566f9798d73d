"""Versions, commit, machine and options of every training session of a run, in the run folder's `sessions.json`.

A session is one training process. Versions come from package metadata, without importing JAX.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from plimsoll.errors import RunError
from plimsoll.files.run_folder import RunFolder

SESSIONS = "sessions.json"
PACKAGE = Path(__file__).parents[1]
"""Folder of plimsoll's code."""
DISTRIBUTION = "plimsoll-jax"
"""Name of plimsoll on PyPI, where the name `plimsoll` belongs to another project."""
PACKAGES = (
    *("jax", "jaxlib", "optax", "orbax-checkpoint", "numpy"),
    *("grain", "tokenizers", "datasets", "h5py", "pyarrow"),
)
"""Packages whose versions are recorded, because they affect computation or the reading of data."""


def note_session(
    folder: RunFolder,
    notes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Appends an entry to `sessions.json` for a training session that starts now on this machine.

    Args:
        folder: The run folder.
        notes: Sentences about changes since the previous session. The ledger gets them even if this session is killed.
        options: Options that the next session reuses, unless the user sets them again.
        now: Clock.
    """
    session = {
        "started": now().strftime("%Y-%m-%d %H:%M:%SZ"),
        **here(),
        "notes": [*notes],
        "options": {**(options or {})},
    }
    folder.write(SESSIONS, [*sessions(folder), session])


def notes(folder: RunFolder) -> list[str]:
    """Returns the notes (sentences about changes) of all sessions of a run, the oldest first."""
    return [note for session in sessions(folder) for note in session.get("notes", [])]


def last_options(folder: RunFolder) -> dict[str, Any]:
    """Returns the recorded options of a run's latest session, for the next session to reuse."""
    return next((session["options"] for session in reversed(sessions(folder)) if "options" in session), {})


def sessions(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns the entries of `sessions.json`, the oldest first; no entries if the file is missing or damaged."""
    if not folder.has(SESSIONS):
        return []
    try:
        rows: Any = folder.read(SESSIONS)
    except RunError:
        return []
    return rows


def here() -> dict[str, Any]:
    """Returns the versions of plimsoll and of PACKAGES, the git commit, and facts about the machine, by name.

    An unknown value is None.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    except OSError:
        processor = platform.processor() or None
    return {
        "plimsoll": version(),
        "commit": commit(PACKAGE),
        **{name: installed_version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def version() -> str:
    """Returns the version of plimsoll."""
    return metadata.version(DISTRIBUTION)


def installed_version(package: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(package: Path) -> str | None:
    """Returns the git commit of the checkout that has `package` in its `src/`.

    The commit ends with `+` if tracked files in `src/` were changed. Returns None for an installed package, even inside
    the checkout of another project.

    Args:
        package: Folder of the package.
    """
    checkout = package.parent.parent
    if package.parent.name != "src" or not (checkout / ".git").exists():
        return None
    revision = _git(checkout, "rev-parse", "--short=12", "HEAD")
    if revision is None:
        return None
    return revision + ("+" if _git(checkout, "status", "--porcelain", "--untracked-files=no", "src") else "")


def _git(checkout: Path, *words: str) -> str | None:
    command = ["git", "-C", str(checkout), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
