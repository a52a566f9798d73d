"""Phases of a session, like loading, steps, evaluations and saves, and the peak bytes that each phase reached."""

from __future__ import annotations

import time

from plimsoll.training import allocator, memory
from plimsoll.units import MIB

COUNTED_LATER = MIB
"""A rise of the resident peak by at most this many bytes counts for the phase with the highest peak so far, because
the kernel counts pages with a delay.

Without this limit, evaluations that raised the peak by 0.2 to 0.6 MiB seemed to need tens of MiB more than planned
(notes, "A peak that is read later")."""


class Phases:
    """Current phase of a session, and the peak bytes of each phase. The first phase is `load`."""

    def __init__(self) -> None:
        self.now = "load"
        self.peak = 0
        self.peaks: dict[str, int] = {}
        """Peak bytes after each phase that raised the peak. A phase that stays below an earlier peak is absent."""
        self.between_steps: int | None = None
        """Lowest bytes in use after a step; None before the first reading."""
        self._steps = "train"
        self._look_again = 0.0

    def begin(self, phase: str) -> None:
        """Begins a phase. A rise of the peak up to now is assigned to the previous phase."""
        self.look()
        self.now = phase

    def end(self, *, steps: str | None = None) -> None:
        """Ends a save or an evaluation, and returns to the phase of the steps.

        Args:
            steps: Phase to which later steps are assigned: `save` while a save runs in the background. If left out, it
                stays as it is.
        """
        self._steps = steps or self._steps
        self.begin(self._steps)

    def after_step(self) -> None:
        """Reads the bytes in use and the peak after a step, at most once every `memory.LOOK_SECONDS`."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + memory.LOOK_SECONDS
            held = allocator.bytes_now()
            self.between_steps = min(self.between_steps or held, held)
            self.look()

    def look(self) -> None:
        """Reads the peak, and assigns a rise since the last reading to the current phase."""
        peak = allocator.peak_bytes()
        rise = peak - self.peak
        if rise <= 0:
            return
        phase = self.now
        if self.peaks and rise <= COUNTED_LATER and allocator.device_bytes() is None:
            phase = max(self.peaks, key=self.peaks.__getitem__)
        self.peaks[phase] = self.peak = peak
