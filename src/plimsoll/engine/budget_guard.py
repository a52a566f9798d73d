"""The memory budget of one session: whether it was exceeded, what the run then keeps, and what is logged.

On a CPU the kernel's count of the resident set is compared with it between steps. On an accelerator, whose allocator
has the budget as its limit, and on a CPU under an address-space limit, the allocator refuses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import jax

from plimsoll.engine.options import Session
from plimsoll.errors import DeviceLostError, StoppedError
from plimsoll.files.run_folder import RunFolder
from plimsoll.planned import Overrun, Planned
from plimsoll.training import allocator, distributed, memory, overruns
from plimsoll.training.loop import Ended
from plimsoll.units import format_bytes


@dataclass
class BudgetGuard:
    """The budget of a session."""

    session: Session
    folder: RunFolder
    planned: Planned
    steps: int
    """Steps of the whole run."""
    started: int = 0
    """Peak when training began: no plan changes what a process needs until then, so another one is no answer to it."""
    overrun: Overrun | None = None
    look_again: float = 0.0
    """Time of `time.monotonic` before which `exceeded` does not look again."""

    @property
    def counts(self) -> bool:
        """True where measured bytes are those that were predicted: no plan counts --debug-nans' copy, nor a trace."""
        return not self.session.debug_nans and not self.session.profile and self.session.profiler_port is None

    def exceeded(self) -> bool:
        """Returns whether training should stop and be planned again. Looks every `memory.LOOK_SECONDS` at most."""
        now = time.monotonic()
        if self.session.keep_plan or now < self.look_again:
            return False
        self.look_again = now + memory.LOOK_SECONDS
        return self._over()

    def _over(self) -> bool:
        if not self.counts or jax.default_backend() != "cpu":
            return False
        return memory.peak_resident_bytes() > max(self.session.budget_bytes, self.started)

    def session_ended(self, ended: Ended) -> None:
        """Keeps an overrun in the run where steps are left for another plan, even if the process is killed later.

        Of several processes all call it, and keep that of the one which held most.
        """
        if ended.step == self.steps:
            return
        each = distributed.of_each("peaks", memory.peak_resident_bytes() if self._over() else 0)
        if highest := max(each):
            process = each.index(highest) if len(each) > 1 else None
            self._keep("resident set", ended.step, highest, process=process)

    def refused(self, problem: BaseException) -> Ended:
        """Keeps an allocator's refusal, and returns how the session ended: at the newest checkpoint.

        The state may have been donated to the step that failed. Raises StoppedError where no other plan may be tried.
        """
        step = max(self.folder.saved_steps(), default=0)
        message = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
        if self.session.keep_plan or not self.counts:
            flag = "--keep-plan" if self.session.keep_plan else "--debug-nans or a profile"
            raise StoppedError(
                f"the allocator refused what training needs ({message}), and with {flag} the run looks for no smaller"
                f" plan. What was saved up to step {step:,} is whole: run the same command without it to continue"
            ) from problem
        self._keep("allocator", step, allocator.peak_bytes(), message)
        return Ended(step, None, True)

    def lost(self, problem: BaseException) -> DeviceLostError:
        """Returns the error of a session whose accelerator no longer answers."""
        step = max(self.folder.saved_steps(), default=0)
        message = " ".join(str(problem).split())[:200]
        advice = "`nvidia-smi` and the system's log (`dmesg | grep Xid`) say what became of it"
        if "OUT_OF_MEMORY" in message:
            advice = "its driver had no memory left beside the budget: ask for a smaller --memory, with --replan"
        return DeviceLostError(
            f"the accelerator no longer answers ({message}): {advice}. What was saved up to step {step:,} is whole: run"
            " the same command again to continue"
        )

    def _keep(
        self,
        what: Literal["resident set", "allocator"],
        step: int,
        measured: int,
        message: str = "",
        *,
        process: int | None = None,
    ) -> None:
        self.overrun = Overrun(
            step=step,
            what=what,
            budget_bytes=self.session.budget_bytes,
            predicted_bytes=overruns.predicted_running_bytes(self.planned),
            measured_bytes=measured,
            said=message,
            process=process,
        )
        overruns.add(self.folder, self.overrun)

    def words(self, *, plans_again: bool) -> str:
        """Returns the overrun for the log: the facts, and what happens now."""
        assert self.overrun is not None
        margin = f"a margin of {format_bytes(overruns.margin_bytes(overruns.read(self.folder)))}"
        if self.session.keep_plan:
            consequence = "--keep-plan: the plan stays"
        elif plans_again:
            consequence = f"What is good is saved: planning again with {margin}, to continue from there"
        else:
            consequence = f"The same command plans again with {margin}, and continues"
        return f"step {self.overrun.step:,}: {self.overrun.words()}. {consequence}"
