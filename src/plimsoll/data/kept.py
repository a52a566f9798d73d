"""Folders of tokens in the cache. A folder is made once, for all runs with the same data and tokenizer.

A folder's name is a digest of the facts that determine its content. Changed data or another tokenizer gives another
name, a copy of the data the same. Each use reads the complete folder and compares checksums. A damaged folder is made
again. Folders may be removed at any time: the next run that needs one makes it again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from plimsoll.errors import DataError, PlimsollError, StoppedError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import Make, Say, free_bytes, held, partial_of
from plimsoll.files.manifest import damage, is_finished
from plimsoll.processes import cache
from plimsoll.units import MIB, format_bytes

Contents = TypeVar("Contents")
LEAST_FREE = 16 * MIB
"""Bytes of the disk that a new folder must leave free."""
MADE_ONCE = "tokens: made once, for all runs with this data and tokenizer, in {folder}"
"""Progress message before a folder is filled."""
ADVICE = "`plimsoll doctor` shows what the cache holds, and PLIMSOLL_CACHE names another folder"


class NotKept(PlimsollError):
    """The cache cannot store the tokens: its folder is not writable, its disk is full, or its limit is too low."""


def kept(name: str) -> Path | None:
    """Returns the cache's folder of this name and marks it as used now; None if it is absent or damaged."""
    folder = cache.cache_folder() / "tokens" / name
    with suppress(OSError):  # another process may remove the folder meanwhile
        if is_finished(folder) and damage(folder) is None:
            with suppress(OSError):  # the folder belongs to another user
                os.utime(folder)
            return folder
    return None


def made_once(
    made_with: Facts, make: Make, open_folder: Callable[[Path], Contents], *, continues: bool = False, say: Say
) -> Contents:
    """Opens the cache's folder for these facts; makes it if it is missing. A second process waits for the first.

    Args:
        made_with: All facts that determine the content.
        make: Fills the folder, and returns counts of its content. If it raises, the unfinished folder is removed.
        open_folder: Function from the folder to the returned object.
        continues: Whether `make` continues an unfinished folder of a killed process.
        say: Receives progress messages.

    Raises:
        DataError: From `make`.
        NotKept: The cache cannot store the folder.
    """
    limit = cache.limit_bytes()
    try:
        home = cache.cache_folder()
    except PlimsollError as problem:
        raise NotKept(str(problem)) from None
    with suppress(DataError, OSError):  # another process may remove the folder meanwhile
        if (there := kept(made_with.digest)) is not None:
            return open_folder(there)

    def say_of_tokens(words: str) -> None:
        say(f"tokens: {words}")

    folder = home / "tokens" / made_with.digest
    try:
        with held(folder, made_with, make, continues=continues, verified=True, say=say_of_tokens):
            contents = open_folder(folder)
    except (DataError, NotKept):
        shutil.rmtree(partial_of(folder), ignore_errors=True)
        raise
    except (StoppedError, OSError) as problem:  # frees the disk for the process that filled it
        shutil.rmtree(partial_of(folder), ignore_errors=True)
        why = problem.strerror if isinstance(problem, OSError) else "the disk is full"
        raise NotKept(f"the cache folder {home} cannot be written to: {why}. {ADVICE}") from None
    cache.prune(home, limit)
    return contents


def require_room(unfinished: Path, name: str, expected: int) -> None:
    """Raises NotKept if the disk or the limit of the cache has no room for a folder.

    Args:
        unfinished: The folder, which may hold a part of the ids.
        name: Name of the data in the error message.
        expected: Estimated bytes of all ids.
    """
    limit = cache.limit_bytes()
    free, home = free_bytes(unfinished), unfinished.parent
    missing = expected - sum(path.stat().st_size for path in unfinished.rglob("*.bin"))
    if expected > limit or missing > free - LEAST_FREE:
        room = f"the cache may have {format_bytes(limit)} ({cache.LIMIT})"
        if free - LEAST_FREE < limit:
            room = f"{format_bytes(free)} are free at {home}, of which {format_bytes(LEAST_FREE)} stay free"
        raise NotKept(f"{name} takes {format_bytes(expected)} of ids or more, and {room}. {ADVICE}")
