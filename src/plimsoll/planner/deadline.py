"""The time that planning may take: it ends the questions, and never refuses a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CONFIRMING_SECONDS = 6.0
"""Seconds that confirming a plan is taken to need."""
SHARE_OF_TRAINING = 0.02
"""Share of the time of a run for which it may be planned, where nobody said how long."""
MOST_SECONDS = 120.0
"""Seconds for which it may be planned then at most."""


@dataclass
class Deadline:
    """The end of the time that planning is given."""

    seconds: float = math.inf
    """Seconds that planning may take."""
    clock: Callable[[], float] = time.monotonic
    is_patient: bool = False
    """Whether it may take longer for a run that takes long."""
    compile_seconds: float = 0.0
    """Seconds that the latest compile took: what is left must be enough for another."""
    was_interrupted: bool = False
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def left(self) -> float | None:
        """Returns the seconds until just enough is left for a compile and a confirmation; None for no limit."""
        if self.seconds == math.inf:
            return None
        passed = self.clock() - self.began
        return max(0.0, self.seconds - passed - self.compile_seconds - CONFIRMING_SECONDS)

    def is_over(self) -> bool:
        return self.was_interrupted or self.left() == 0

    def extend_for(self, training_seconds: float) -> None:
        """Gives planning longer for a run that takes so long that a faster step is worth it."""
        if not self.is_patient:
            return
        worth = min(MOST_SECONDS, SHARE_OF_TRAINING * training_seconds)
        self.seconds = max(self.seconds, worth)

    @property
    def words(self) -> str:
        """How the search ended, as the end of a phrase; empty if nothing was left to ask."""
        if self.was_interrupted:
            return " found before planning was interrupted"
        return " found within the time limit of planning" if self.is_over() else ""
