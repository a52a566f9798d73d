"""Compiling for a chip that is not in this machine, with a cross-compiler (`plimsoll chips --install`).

The compiled functions are never run. Without the compiler, bytes are estimated from the jaxpr (planner/liveness.py),
and the plan is marked `estimated`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from plimsoll.engine import unassembled
from plimsoll.engine.backends.accelerator import Accelerator
from plimsoll.planner import chips, topology
from plimsoll.planner.types import Rates, Subject
from plimsoll.training import program


class Topology(Accelerator):
    """Cross-compiler for a chip that is not in this machine."""

    def __init__(self, subject: Subject) -> None:
        assert subject.chip is not None
        super().__init__(subject.chip)
        self.devices: Sequence[Any] | None = None
        """Devices that functions are lowered for; None if no compiler is installed."""
        self.options: program.Options = {}
        """Compiler options in addition to those of training."""
        if subject.is_compiled:
            self.devices = topology.devices(self.chip)
            if self.chip.platform == "cuda":
                self._folder = tempfile.TemporaryDirectory(prefix="plimsoll-")
                self.options = unassembled.options(Path(self._folder.name))

    def rates(self) -> Rates:
        """Returns the chip's FLOP/s and other rates from the catalogue of chips."""
        return chips.rates(self.chip)

    def compile(
        self, lowered: jax.stages.Lowered, *, deterministic: bool, file: Path | None = None
    ) -> jax.stages.Compiled:
        """Compiles a function for the absent chip, with the same memory use as in training."""
        platform = chips.BACKEND[self.chip.platform]
        return program.compiled(lowered, platform=platform, deterministic=deterministic, more=self.options)
