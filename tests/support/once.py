"""What all processes of one test run share: made by the first that needs it, found there by the others."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def base_folder(tmp_path_factory) -> Path:
    """Returns the folder of this test run: with pytest-xdist the one that holds the folders of all its processes."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(tmp_path_factory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a folder in which `make(folder)` has been called exactly once in this test run, by any of its processes.

    Whoever comes second waits. Nobody writes into it afterwards: a test that does takes a copy.
    """
    folder = base_folder(tmp_path_factory) / "shared" / name
    folder.mkdir(parents=True, exist_ok=True)
    finished = folder.with_name(f"{name}.finished")
    with open(folder.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            make(folder)
            finished.touch()
    return folder
