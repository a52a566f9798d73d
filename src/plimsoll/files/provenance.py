"""Versions, commit and machine of every session of a run, kept in its `sessions.json`.

They are read from package metadata and the system, without importing JAX.
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
"""Folder of this package's code."""
DISTRIBUTION = "plimsoll-jax"
"""Name of the distribution: the package called plimsoll in the registry is somebody else's."""
PACKAGES = (
    *("jax", "jaxlib", "optax", "orbax-checkpoint", "numpy"),
    *("grain", "tokenizers", "datasets", "h5py", "pyarrow"),
)
"""Packages that compute, and those that make rows of data."""


def note_session(
    folder: RunFolder,
    notes: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Adds a session that starts now on this machine to those that the run records.

    Args:
        folder: The run.
        notes: What was changed for this session, which may be killed before it writes its ledger.
        options: Options that a session goes on with that is given none.
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
    """Returns what was noted when the sessions of a run began, the oldest first."""
    return [note for session in sessions(folder) for note in session.get("notes", [])]


def last_options(folder: RunFolder) -> dict[str, Any]:
    """Returns the options that the next session of a run goes on with."""
    return next((session["options"] for session in reversed(sessions(folder)) if "options" in session), {})


def sessions(folder: RunFolder) -> list[dict[str, Any]]:
    """Returns the sessions of a run, the oldest first. No run depends on them: a damaged file has none."""
    if not folder.has(SESSIONS):
        return []
    try:
        rows: Any = folder.read(SESSIONS)
    except RunError:
        return []
    return rows


def here() -> dict[str, Any]:
    """Returns the versions of this package and of those that compute, the commit and the machine; None if unknown."""
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
    """Returns the version of this package."""
    return metadata.version(DISTRIBUTION)


def installed_version(package: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(package: Path) -> str | None:
    """Returns the commit of the checkout whose `src/` holds the package, with a `+` if files there differ from it.

    Returns None for an installed package, even inside the checkout of another project.
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
