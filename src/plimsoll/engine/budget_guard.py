"""Memory budget of one training session: detection, recording and logging of an overrun (use beyond the budget).

On a CPU the peak resident set is compared with the budget between steps. On an accelerator the allocator refuses
allocations beyond the budget. So does a CPU's allocator under an address-space limit.
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
    """Checks a session's memory against its budget, and records an overrun."""

    run: TrainingRun
    peak_before_training: int = 0
    """Peak bytes of the process before its first step. They do not count as an overrun: every plan needs them."""
    overrun: Overrun | None = None
    """The overrun that this session has recorded; None without one."""
    look_again: float = 0.0
    """Time from which `is_exceeded` measures again, on the clock `time.monotonic`."""

    @property
    def counts(self) -> bool:
        """True if overruns count: not with --profile or --profiler-port, because predictions leave out the profiler."""
        session = self.run.session
        return not session.profile and session.profiler_port is None

    def is_exceeded(self) -> bool:
        """Returns True if training should stop for a new plan. Measures at most once every `memory.LOOK_SECONDS`."""
        now = time.monotonic()
        if self.run.session.keep_plan or now < self.look_again:
            return False
        self.look_again = now + memory.LOOK_SECONDS
        return self._excess_bytes() > 0

    def _excess_bytes(self) -> int:
        """Returns the peak resident bytes of a CPU process, if above both budget and `peak_before_training`, else 0.

        Returns 0 on an accelerator, whose allocator enforces the budget, and with a profiler.
        """
        if not self.counts or jax.default_backend() != "cpu":
            return 0
        peak = memory.peak_resident_bytes()
        return peak if peak > max(self.run.session.budget_bytes, self.peak_before_training) else 0

    def keep_overrun(self, ended: Ended) -> None:
        """Records an overrun of the resident set in the run folder, if the run has steps left.

        All training processes of a run call it, and record the highest peak of all.
        """
        if ended.step < self.run.prepared.steps:
            highest = max(distributed.of_each("peaks", self._excess_bytes()))
            if highest:
                self._keep("resident set", ended.step, highest)

    def end_by(self, problem: Exception) -> Ended:
        """Handles an error of a session. Returns the session's end if an allocation failed and another plan may fit.

        Records the failed allocation in the run folder; with several training processes only process 0 does.

        Raises:
            DeviceLostError: The accelerator no longer answers.
            StoppedError: An allocation failed, and the run has several processes, --keep-plan or a profiler.
            Exception: `problem` itself, if it is any other error.
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
        """Records a failed allocation, and returns the session's end at the newest checkpoint's step.

        Later steps are lost, because the state may have been donated to the step that failed.

        Raises:
            StoppedError: --keep-plan or a profiler rules out another plan.
        """
        step = max(self.run.folder.saved_steps(), default=0)
        message = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
        keep_plan = self.run.session.keep_plan
        if keep_plan or not self.counts:
            flag = "--keep-plan" if keep_plan else "a profile"
            raise StoppedError(
                f"the allocator refused what training needs ({message}), and with {flag} the run looks for no smaller"
                f" plan. What was saved up to step {step:,} is whole: run the same command without {flag} to continue"
            ) from problem
        self._keep("allocator", step, allocator.peak_bytes(), message)
        return Ended(step, Reason.OVER_BUDGET)

    def lost(self, problem: BaseException) -> DeviceLostError:
        """Returns the error for an accelerator that no longer answers."""
        step = max(self.run.folder.saved_steps(), default=0)
        message = " ".join(str(problem).split())[:200]
        return DeviceLostError(
            f"the accelerator no longer answers ({message}): `nvidia-smi` and the system's log (`dmesg | grep Xid`) say"
            " why; if its driver had no memory left, give a smaller --memory, with --replan. What was saved up to step"
            f" {step:,} is whole: run the same command again to continue"
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
        """Returns the log message about the overrun: bytes, and whether the run is planned again (`plans_again`)."""
        assert self.overrun is not None
        margin = f"a margin of {format_bytes(overruns.margin_bytes(overruns.read(self.run.folder)))}"
        if self.run.session.keep_plan:
            consequence = "--keep-plan: the plan stays"
        elif plans_again:
            consequence = f"The newest checkpoint is kept: planning again with {margin}, to continue from it"
        else:
            consequence = f"The same command plans again with {margin}, and continues"
        return f"step {self.overrun.step:,}: {self.overrun.words()}. {consequence}"
