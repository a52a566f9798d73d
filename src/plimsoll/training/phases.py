"""Phases of a session, like loading, steps, evaluations and saves, and the peak that each of them reached."""

from __future__ import annotations

import time

from plimsoll.training import allocator, memory
from plimsoll.units import MIB

COUNTED_LATER = MIB
"""Resident bytes by which a peak may be read higher a little later: the kernel counts pages of each processor apart.
Every evaluation of a draw that raised a peak did so by 0.2 to 0.6 MiB, and was taken to need tens of MiB more than
planned (notes, "A peak that is read later")."""


class Phases:
    """The phase that a session is in, and the peaks of those before. A session begins by loading."""

    def __init__(self) -> None:
        self.now = "load"
        self.peak = 0
        self.peaks: dict[str, int] = {}
        """The peak after each phase that raised it; what a phase needs below an earlier peak cannot be seen."""
        self.between_steps: int | None = None
        """The least that was held after a step."""
        self._steps = "train"
        self._look_again = 0.0

    def begin(self, phase: str) -> None:
        """Begins a phase, and assigns what has raised the peak so far to the one before."""
        self.look()
        self.now = phase

    def end(self, *, steps: str | None = None) -> None:
        """Ends an act between steps. What the steps from here on reach belongs to the phase `steps`, if it is given."""
        self._steps = steps or self._steps
        self.begin(self._steps)

    def after_step(self) -> None:
        """Looks at the memory after a step, every `memory.LOOK_SECONDS` at most."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + memory.LOOK_SECONDS
            held = allocator.bytes_now()
            self.between_steps = min(self.between_steps or held, held)
            self.look()

    def look(self) -> None:
        """Assigns what has raised the peak since the last look to the phase of now."""
        peak = allocator.peak_bytes()
        rise = peak - self.peak
        if rise <= 0:
            return
        phase = self.now
        if self.peaks and rise <= COUNTED_LATER and allocator.device_bytes() is None:
            phase = max(self.peaks, key=self.peaks.__getitem__)
        self.peaks[phase] = self.peak = peak
