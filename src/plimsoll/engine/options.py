"""What one session of a run may be told, by the library or the command line, and hands on to its process."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from plimsoll.errors import RecipeError


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
    keep_plan: bool = False
    """Go on over the budget, and only say so."""

    def __post_init__(self) -> None:
        least = {"max_steps": 1, "log_every": 1, "save_every": 1, "eval_every": 0, "profile": 0, "profiler_port": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise RecipeError(f"--{name.replace('_', '-')} must be {smallest} or more, got {value}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise RecipeError(f"--max-minutes must be above 0, got {self.max_seconds / 60:g}")


def session_options(given: Any) -> dict[str, Any]:
    """Those of them that `given` has, by name."""
    names = [field.name for field in fields(SessionOptions)]
    return {name: getattr(given, name) for name in names if hasattr(given, name)}
