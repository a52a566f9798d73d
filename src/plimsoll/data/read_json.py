"""A JSON file that a data set cannot do without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plimsoll.errors import DataError


def read_json(path: Path, *, absent: str, again: str) -> Any:
    """What the file holds. DataError in the words of `absent` where there is none; where it cannot be read, with what
    is wrong and `again`, what to do about that."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(absent) from None
    except (OSError, ValueError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:160]
        raise DataError(f"{path} cannot be read as JSON ({reason}). {again}") from None
