"""What all processes of one test run share: made by the first that needs it, found there by the others."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

SHARED = "PLIMSOLL_TESTS_SHARED"
"""Variable with the folder of what is made once. Its path stays the same from one test run to the next: a recipe names
its data, and compilers are asked anew about a recipe of other data."""


def base_folder(tmp_path_factory) -> Path:
    """Returns the folder of this test run: with pytest-xdist the one that holds the folders of all its processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def take_shared_folder(folder: Path) -> bool:
    """Empties a folder and takes it until this process ends; returns False where another test run has it."""
    lock = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.environ[SHARED] = str(folder)
    return True


def made_once(tmp_path_factory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a folder in which `make(folder)` has been called exactly once in this test run, by any of its processes.

    Whoever comes second waits. Nobody writes into it afterwards: a test that does takes a copy.
    """
    shared = os.environ.get(SHARED) or base_folder(tmp_path_factory) / "shared"
    folder = Path(shared) / name
    folder.mkdir(parents=True, exist_ok=True)
    finished = folder.with_name(f"{name}.finished")
    with open(folder.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            make(folder)
            finished.touch()
    return folder
