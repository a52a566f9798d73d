"""The time limit of planning. After it the search ends once it has a plan. No budget is refused for lack of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CONFIRMING_SECONDS = 6.0
"""Seconds reserved at the end to confirm the bytes of the chosen plan."""
SHARE_OF_TRAINING = 0.02
"""Largest planning time as a share of the training time, if the user sets no limit."""
MOST_SECONDS = 120.0
"""Largest planning time in seconds after an extension, if the user sets no limit."""


@dataclass
class Deadline:
    """Time limit of planning, counted from the creation of this object."""

    seconds: float = math.inf
    """Seconds that planning may take."""
    clock: Callable[[], float] = time.monotonic
    is_patient: bool = False
    """Whether planning may take longer for a long run."""
    compile_seconds: float = 0.0
    """Seconds that the latest compile took. The same time is reserved for another compile."""
    was_interrupted: bool = False
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def left(self) -> float | None:
        """Returns the seconds left for questions to the compiler; None without a time limit.

        Time reserved for another compile and for the confirmation is already subtracted.
        """
        if self.seconds == math.inf:
            return None
        return max(0.0, self._unspent() - self.compile_seconds)

    def is_over(self) -> bool:
        """Returns True if no time is left for a compile."""
        return self.was_interrupted or self.left() == 0

    def leaves_a_timing(self) -> bool:
        """Returns True if a step that was compiled may still be timed."""
        return not self.was_interrupted and self._unspent() > 0

    def _unspent(self) -> float:
        """Returns the seconds left before the confirmation; negative if they have passed."""
        passed = self.clock() - self.began
        return self.seconds - passed - CONFIRMING_SECONDS

    def extend_for(self, training_seconds: float) -> None:
        """Extends the time limit to a share of the training time, if `is_patient`."""
        if not self.is_patient:
            return
        worth = min(MOST_SECONDS, SHARE_OF_TRAINING * training_seconds)
        self.seconds = max(self.seconds, worth)

    @property
    def words(self) -> str:
        """Words to append to a result if the search was interrupted or ran out of time; else empty."""
        if self.was_interrupted:
            return " found before planning was interrupted"
        return " found within the time limit of planning" if self.is_over() else ""
