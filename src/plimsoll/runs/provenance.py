"""With what a session of a run was started: versions, commit, machine. Kept in the run as `sessions.json`.

Part of the joint. Read from package metadata and the system; JAX is not imported for it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from plimsoll.errors import PlimsollError, RunError
from plimsoll.runs.folder import RunFolder

SESSIONS = "sessions.json"
PACKAGE = Path(__file__).parents[1]
"""Folder of this package."""
DISTRIBUTION = "plimsoll-jax"
"""Name of what is installed: the registry's plimsoll is somebody else's."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def note_session(folder: RunFolder, *, now: Callable[[], datetime] = _utc_now) -> None:
    """Adds this start to what the run knows of its sessions."""
    known = sessions(folder)
    if not known and folder.has(SESSIONS):
        os.replace(folder.path / SESSIONS, folder.path / f"{SESSIONS}.damaged")
    folder.write(SESSIONS, [*known, {"started": now().strftime("%Y-%m-%d %H:%M:%SZ"), **here()}])


def sessions(folder: RunFolder) -> list[dict[str, Any]]:
    """The oldest first; none of a run that was begun before they were kept."""
    try:
        found: Any = folder.read(SESSIONS) if folder.has(SESSIONS) else []
    except RunError:  # no run hangs on it: it is begun anew, and the damaged one is kept
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def here() -> dict[str, Any]:
    """`plimsoll` and `commit`, the packages that compute, and the machine; what is not known is None."""
    return {
        "plimsoll": version(),
        "commit": commit(PACKAGE),
        **{name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def version() -> str:
    """Returns the version of this package."""
    return metadata.version(DISTRIBUTION)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(package: Path) -> str | None:
    """Of the checkout whose `src/` holds the package, with `+` where files of it differ; None of an installed one,
    even where that is inside another project's checkout."""
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


def _processor() -> str | None:
    """Its own name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def require_known_version(folder: RunFolder) -> None:
    """Refuses a run that a newer version has written: its figures may mean what this one does not know."""
    newer = [said for one in sessions(folder) if _number(said := str(one.get("plimsoll"))) > _number(version())]
    if newer:
        raise PlimsollError(
            f"{folder.path} was trained by plimsoll {newer[-1]}, and this is {version()}, which may misread"
            f" what a newer version has written: install that version (`pip install {DISTRIBUTION}=={newer[-1]}`), and"
            " ask again"
        )


def _number(version: str) -> tuple[int, ...]:
    """`0.3.1rc1` is (0, 3, 1); what is no version is empty, and so older than any."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
