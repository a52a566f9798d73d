"""The folder in which plimsoll keeps what it can make again: compiled steps, measured rates, tokenised text."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

from plimsoll.errors import PlimsollError


def cache_folder() -> Path:
    """Returns the folder of the cache, which `PLIMSOLL_CACHE` may name. Makes it if need be."""
    override = os.environ.get("PLIMSOLL_CACHE")
    folder = Path(override).expanduser() if override else user_cache_path("plimsoll", ensure_exists=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise PlimsollError(
            f"the cache folder {folder} cannot be made: {problem.strerror}. Compiled steps and tokenised text are"
            " kept there: name a folder you may write to with PLIMSOLL_CACHE"
        ) from None
    return folder
