"""What one session of a run may be told, by the library or the command line, and hands on to its process."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """None of these changes what is trained, only how long, and what is said of it."""

    max_steps: int | None = None
    max_seconds: float | None = None
    log_every: int = 10
    save_every: int | None = None
    eval_every: int | None = None
    quiet: bool = False
    tracker: str = "none"
    profile: int = 0
    profiler_port: int | None = None
    debug_nans: bool = False


def session_options(given: Any) -> dict[str, Any]:
    """Those of them that `given` has, by name."""
    names = [field.name for field in fields(SessionOptions)]
    return {name: getattr(given, name) for name in names if hasattr(given, name)}
