"""Why a session ends, and what happens then.

SIGINT, SIGTERM or SIGHUP: the step under way is finished, an evaluation under way ends after its batch, the state is
saved without an evaluation, and the exit code is 128 and the signal's number. The next session begins with the
evaluation that was left out, if it was due. A second signal ends the process (`processes/interruption.py`).

Over the budget: the state is saved, and the process becomes one that plans again (`engine/session.py`).

All steps taken, no better evaluation, or the time is up: the state is evaluated and saved, and the exit code is 0.
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
    """Why a session ends. Of several processes' reasons the largest counts."""

    NONE = 0
    HANGUP = signal.SIGHUP
    INTERRUPT = signal.SIGINT
    TERMINATE = signal.SIGTERM
    NO_BETTER = 98
    """Evaluations brought nothing better (`Patience`)."""
    FINISHED = 99
    """Its last step was taken."""
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
    """End of a session: its last step, and why."""

    step: int
    why: Reason


class Stop:
    """Decides between steps whether a session ends.

    Args:
        schedule: Its last step, and the time it has from now on.
        patience: Count of evaluations without a better one.
        interruption: Handler of signals; in force already.
        is_over_budget: Whether the memory budget was exceeded.
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
        """True of a process that trains alone, which agrees with nobody."""
        return self.agreed.alone

    @property
    def signal(self) -> Reason:
        """The signal that this process has received, if there is one."""
        return Reason(self.interruption.signal or 0)

    @property
    def why(self) -> Reason:
        """Why the session ends. A process alone follows a signal at any time, several after they agreed."""
        if self.is_alone and self.signal:
            return self.signal
        return self._decided

    def decide(self, step: int) -> bool:
        """Returns whether the session ends after this step. All processes call it once a step."""
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
        """Returns why this process would end the session now."""
        if self.signal:
            return self.signal
        if time.monotonic() >= self.deadline:
            return Reason.TIME_IS_UP
        return Reason.OVER_BUDGET if self.is_over_budget() else Reason.NONE

    def ends_evaluation(self) -> bool:
        """Returns whether a signal ends the evaluation under way. All processes call it before each batch."""
        agreed = Reason(self.agreed_in_evaluation(self.signal))
        if agreed:
            self._decided = agreed
        return agreed is not Reason.NONE

    @property
    def allows_evaluation(self) -> bool:
        """True if the last state is evaluated: neither after a signal, nor over the budget."""
        return not self.why.is_signal and self.why is not Reason.OVER_BUDGET
