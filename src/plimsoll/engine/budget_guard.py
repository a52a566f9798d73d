"""The memory budget of one session: whether it was exceeded, what the run then keeps, and what is logged.

On a CPU the kernel's count of the resident set is compared with it between steps. On an accelerator, whose allocator
has the budget as its limit, and on a CPU under an address-space limit, the allocator refuses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import jax

from plimsoll.engine.training_run import TrainingRun
from plimsoll.errors import DeviceLostError, StoppedError, ended_by_memory
from plimsoll.planned import Overrun
from plimsoll.training import allocator, distributed, memory, overruns
from plimsoll.training.stop import Ended, Reason
from plimsoll.units import format_bytes


@dataclass
class BudgetGuard:
    """The budget of a session."""

    run: TrainingRun
    started: int = 0
    """Peak when training began: no plan changes what a process needs until then, so another one is no answer to it."""
    overrun: Overrun | None = None
    look_again: float = 0.0
    """Time of `time.monotonic` before which `is_exceeded` does not look again."""

    @property
    def counts(self) -> bool:
        """True where measured bytes are those that were predicted: no plan counts what a profile takes."""
        session = self.run.session
        return not session.profile and session.profiler_port is None

    def is_exceeded(self) -> bool:
        """Returns whether training should stop and be planned again. Looks every `memory.LOOK_SECONDS` at most."""
        now = time.monotonic()
        if self.run.session.keep_plan or now < self.look_again:
            return False
        self.look_again = now + memory.LOOK_SECONDS
        return self._excess_bytes() > 0

    def _excess_bytes(self) -> int:
        """Returns the peak resident set if it exceeds the budget; 0 if it does not, or is not what was planned."""
        if not self.counts or jax.default_backend() != "cpu":
            return 0
        peak = memory.peak_resident_bytes()
        return peak if peak > max(self.run.session.budget_bytes, self.started) else 0

    def keep_overrun(self, ended: Ended) -> None:
        """Keeps an overrun in the run where steps are left for another plan, even if the process is killed later.

        Of several processes all call it, and keep that of the one which held most.
        """
        if ended.step < self.run.prepared.steps:
            highest = max(distributed.of_each("peaks", self._excess_bytes()))
            if highest:
                self._keep("resident set", ended.step, highest)

    def end_by(self, problem: Exception) -> Ended:
        """Returns how a session ends where the allocator refused, after keeping that; raises any other problem.

        Of several processes it raises StoppedError, which ends this one, and JAX ends the others. The first one keeps
        an overrun of its own before.
        """
        if allocator.device_lost(problem):
            raise self.lost(problem) from problem
        if not allocator.refused(problem):
            raise problem
        if distributed.processes() == 1:
            return self.refused(problem)
        if distributed.process() == 0:
            self.refused(problem)
        raise StoppedError(ended_by_memory(problem)) from None

    def refused(self, problem: BaseException) -> Ended:
        """Keeps an allocator's refusal, and returns how the session ended: at the newest checkpoint.

        The state may have been donated to the step that failed. Raises StoppedError where no other plan may be tried.
        """
        step = max(self.run.folder.saved_steps(), default=0)
        message = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
        keep_plan = self.run.session.keep_plan
        if keep_plan or not self.counts:
            flag = "--keep-plan" if keep_plan else "a profile"
            raise StoppedError(
                f"the allocator refused what training needs ({message}), and with {flag} the run looks for no smaller"
                f" plan. What was saved up to step {step:,} is whole: run the same command without it to continue"
            ) from problem
        self._keep("allocator", step, allocator.peak_bytes(), message)
        return Ended(step, Reason.OVER_BUDGET)

    def lost(self, problem: BaseException) -> DeviceLostError:
        """Returns the error of a session whose accelerator no longer answers."""
        step = max(self.run.folder.saved_steps(), default=0)
        message = " ".join(str(problem).split())[:200]
        return DeviceLostError(
            f"the accelerator no longer answers ({message}): `nvidia-smi` and the system's log (`dmesg | grep Xid`) say"
            " what became of it; where its driver had no memory left, ask for a smaller --memory, with --replan. What"
            f" was saved up to step {step:,} is whole: run the same command again to continue"
        )

    def _keep(self, what: Literal["resident set", "allocator"], step: int, measured: int, message: str = "") -> None:
        self.overrun = Overrun(
            step=step,
            what=what,
            budget_bytes=self.run.session.budget_bytes,
            predicted_bytes=overruns.predicted_running_bytes(self.run.planned),
            measured_bytes=measured,
            said=message,
        )
        overruns.add(self.run.folder, self.overrun)

    def words(self, *, plans_again: bool) -> str:
        """Returns the overrun for the log: the facts, and what happens now."""
        assert self.overrun is not None
        margin = f"a margin of {format_bytes(overruns.margin_bytes(overruns.read(self.run.folder)))}"
        if self.run.session.keep_plan:
            consequence = "--keep-plan: the plan stays"
        elif plans_again:
            consequence = f"What is good is saved: planning again with {margin}, to continue from there"
        else:
            consequence = f"The same command plans again with {margin}, and continues"
        return f"step {self.overrun.step:,}: {self.overrun.words()}. {consequence}"
