"""The Python standard library's source files as documents: text that every machine has, without a download.

Left out are installed packages, the library's own tests, and files that are not UTF-8: `describe()` counts
these.
"""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from plimsoll.data.text.documents import Documents, contents_of
from plimsoll.data.text.formats import File
from plimsoll.errors import DataError
from plimsoll.units import format_bytes

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def python_sources(*, max_examples: int | None = None) -> Documents:
    """One file, one document, in the order of the sorted names. About 15 MB and 700 files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(_sources(root))
    readable = [path for path in paths if _is_text(path)]
    if not readable:
        raise DataError(
            f"the standard library of this Python has no source files in {root}: it was installed without "
            "them. Name a data set with --dataset-id."
        )
    files = [File(path=path, format="whole") for path in readable]
    size = format_bytes(sum(path.stat().st_size for path in readable))
    skipped = len(paths) - len(readable)
    return Documents(
        files,
        name="the Python standard library",
        description=f"{len(files)} Python source files, {size}; documents: one file, one document; "
        f"{skipped} files skipped that are not UTF-8",
        contents=contents_of(files, root),
        max_examples=max_examples,
    )


def _sources(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - _LEFT_OUT  # not entered: site-packages holds most of the files
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_bytes().decode("utf-8")
    except (UnicodeDecodeError, OSError):
        return False
