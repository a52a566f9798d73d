"""Tokens in the cache: a folder that is made once, for all runs with the same data and tokenizer.

Its name is a digest of its facts: other data or another tokenizer has another folder, and a copy of the data has the
same. Each use reads it whole and holds it against its checksums; a damaged one is made again. It may be removed at any
time: the next run that needs it makes it again.
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
"""Bytes of the disk that stay free."""
MADE_ONCE = "tokens: made once, for all runs with this data and tokenizer, in {folder}"
"""Line that is said before the work, once there is room for it."""
ADVICE = "`plimsoll doctor` shows what the cache holds, and PLIMSOLL_CACHE names another folder"


class NotKept(PlimsollError):
    """The cache cannot take the tokens: its folder is not to be written to, its disk is full, or its limit too low."""


def kept(name: str) -> Path | None:
    """Returns the folder of this name, and notes its use; None where it is not there, or is damaged."""
    folder = cache.cache_folder() / "tokens" / name
    with suppress(OSError):  # it may be removed meanwhile
        if is_finished(folder) and damage(folder) is None:
            with suppress(OSError):  # another user's
                os.utime(folder)
            return folder
    return None


def made_once(
    made_with: Facts, make: Make, open_folder: Callable[[Path], Contents], *, continues: bool = False, say: Say
) -> Contents:
    """Opens the folder of the cache that is made with these facts; of two processes the second waits.

    Args:
        made_with: All that its content follows from.
        make: Fills the folder, and returns counts of it.
        open_folder: Opens the folder.
        continues: Whether `make` goes on with what a killed process left. What failed is removed.
        say: Receives lines before the work.

    Raises:
        DataError: From `make`.
        NotKept: The cache cannot take it.
    """
    limit = cache.limit_bytes()
    try:
        home = cache.cache_folder()
    except PlimsollError as problem:
        raise NotKept(str(problem)) from None
    with suppress(DataError, OSError):  # it may be removed meanwhile
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
    except (StoppedError, OSError) as problem:  # whoever filled the disk needs it
        shutil.rmtree(partial_of(folder), ignore_errors=True)
        why = problem.strerror if isinstance(problem, OSError) else "the disk is full"
        raise NotKept(f"the cache folder {home} cannot be written to: {why}. {ADVICE}") from None
    cache.prune(home, limit)
    return contents


def require_room(unfinished: Path, name: str, expected: int) -> None:
    """Raises NotKept where neither the disk nor the limit of the cache has room for a folder.

    Args:
        unfinished: The folder, in which a part may be.
        name: What the user calls the data.
        expected: About how many bytes of ids it will have.
    """
    limit = cache.limit_bytes()
    free, home = free_bytes(unfinished), unfinished.parent
    missing = expected - sum(path.stat().st_size for path in unfinished.rglob("*.bin"))
    if expected > limit or missing > free - LEAST_FREE:
        room = f"the cache may have {format_bytes(limit)} ({cache.LIMIT})"
        if free - LEAST_FREE < limit:
            room = f"{format_bytes(free)} are free at {home}, of which {format_bytes(LEAST_FREE)} stay free"
        raise NotKept(f"{name} takes {format_bytes(expected)} of ids or more, and {room}. {ADVICE}")
