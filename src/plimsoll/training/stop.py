"""Reasons for the end of a session, and the actions before it.

SIGINT, SIGTERM or SIGHUP: the current step is finished, a running evaluation ends after its batch, the state is saved
without an evaluation, and the exit code is 128 plus the signal's number. The next session first repeats the evaluation,
if it was due. A second signal ends the process at once (`processes/interruption.py`).

Memory budget exceeded: the state is saved, and the process becomes one that plans again (`engine/session.py`).

Last step, patience exhausted, or time limit: the state is evaluated and saved, and the exit code is 0.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from plimsoll.processes.interruption import Interruption
from plimsoll.training.distributed import Agreement
from plimsoll.training.schedule import Patience, Schedule


class Reason(IntEnum):
    """Reason for the end of a session. If processes have different reasons, the largest value counts."""

    NONE = 0
    HANGUP = signal.SIGHUP
    INTERRUPT = signal.SIGINT
    TERMINATE = signal.SIGTERM
    NO_BETTER = 98
    """`Schedule.patience` evaluations in a row brought no improvement."""
    FINISHED = 99
    """The session's last step is done."""
    TIME_IS_UP = 100
    OVER_BUDGET = 101

    @property
    def is_signal(self) -> bool:
        return self in (Reason.HANGUP, Reason.INTERRUPT, Reason.TERMINATE)

    @property
    def exit_code(self) -> int:
        """Exit code of a process that ends for this reason."""
        return 128 + self if self.is_signal else 0


@dataclass(frozen=True)
class Ended:
    """End of a session: its last step, and its reason."""

    step: int
    why: Reason


class Stop:
    """Decides after each step whether the session ends.

    Args:
        schedule: Schedule with the session's last step, and the seconds after which the session ends, counted from now.
        patience: Count of evaluations since the best one.
        interruption: Handler of signals, already installed.
        is_over_budget: Function that returns True if the memory budget is exceeded.
    """

    def __init__(
        self,
        schedule: Schedule,
        patience: Patience,
        interruption: Interruption,
        is_over_budget: Callable[[], bool] = lambda: False,
    ) -> None:
        self.schedule = schedule
        self.patience = patience
        self.interruption = interruption
        self.is_over_budget = is_over_budget
        self.deadline = time.monotonic() + schedule.seconds
        self.agreed = Agreement()
        self.agreed_in_evaluation = Agreement()
        self._decided = Reason.NONE

    @property
    def is_alone(self) -> bool:
        """True if the run has a single process, which needs no agreement."""
        return self.agreed.alone

    @property
    def signal(self) -> Reason:
        """The signal that this process has received, as a reason; NONE without a signal."""
        return Reason(self.interruption.signal or 0)

    @property
    def why(self) -> Reason:
        """Reason for the end of the session. A single process follows a signal at any time, several after agreement."""
        if self.is_alone and self.signal:
            return self.signal
        return self._decided

    def decide(self, step: int) -> bool:
        """Returns True if the session ends after this step. All processes call it once per step."""
        if self._decided:
            return True
        if self.patience.is_over and step < self.schedule.steps:
            self._decided = Reason.NO_BETTER
        elif step >= self.schedule.last_step:
            self._decided = Reason.FINISHED
        else:
            self._decided = Reason(self.agreed(self._request()))
        return self._decided is not Reason.NONE

    def _request(self) -> Reason:
        """Returns this process's own reason to end the session now, or NONE."""
        if self.signal:
            return self.signal
        if time.monotonic() >= self.deadline:
            return Reason.TIME_IS_UP
        return Reason.OVER_BUDGET if self.is_over_budget() else Reason.NONE

    def ends_evaluation(self) -> bool:
        """Returns True if a signal ends the running evaluation. All processes call it before each batch."""
        agreed = Reason(self.agreed_in_evaluation(self.signal))
        if agreed:
            self._decided = agreed
        return agreed is not Reason.NONE

    @property
    def allows_evaluation(self) -> bool:
        """True if the last state may be evaluated: not after a signal or an exceeded memory budget."""
        return not self.why.is_signal and self.why is not Reason.OVER_BUDGET
