"""What is read from a step of an accelerator, compiled or traced, whether the chip is here or not."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax

from plimsoll.engine.backends.compiled import analysis_of, module_of
from plimsoll.planner import liveness
from plimsoll.planner.chips import Chip
from plimsoll.planner.flops import Dots, dots, likely_instructions
from plimsoll.planner.hlo.work import work_of
from plimsoll.planner.kernel_seconds import seconds_of
from plimsoll.planner.speed import KERNELS_OF_A_MICRO_BATCH
from plimsoll.planner.types import Analysis
from plimsoll.units import MIB


class Accelerator:
    """What every step of one chip's devices is read by."""

    counts_every_dot = False
    """Whether a traced step shows all of its products: attention in a kernel of its own shows none."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        capability = chip.compiler.get("compute_capability") if chip.platform == "cuda" else None
        self.workspace = 0 if capability is None else cublas_workspace(capability)
        """Bytes that a product takes besides its operands and its result."""

    def analysis(self, step: jax.stages.Compiled, counted: Dots) -> Analysis:
        """Returns the bytes of a compiled step on one device, its kernels, and its work as it was counted."""
        stats = step.memory_analysis()
        assert stats is not None
        on_host = stats.host_argument_size_in_bytes + stats.host_temp_size_in_bytes
        return analysis_of(
            step,
            **self._figures_of_schedule(step),
            peak_bytes=stats.peak_memory_in_bytes - on_host,
            host_temp_bytes=stats.host_temp_size_in_bytes,
            flops=counted.flops,
            moved_bytes=counted.moved_bytes,
        )

    def estimate(self, share: Any, *, micro_batches: int) -> Analysis:
        """Returns what one device's share of a traced step says of its bytes and its work."""
        counted = dots(share)
        return Analysis(
            temp_bytes=self.traced_bytes(share),
            instructions=likely_instructions(share),
            flops=counted.flops * self.chip.devices,
            moved_bytes=counted.moved_bytes * self.chip.devices,
            kernels=KERNELS_OF_A_MICRO_BATCH * micro_batches if self.chip.kernels else 0.0,
            host_temp_bytes=liveness.kept_on_host_bytes(share),
            source="estimated",
        )

    def traced_bytes(self, share: Any) -> int:
        """Returns the temporaries of one device's share of a traced function."""
        return liveness.temporary_bytes(share, workspace=self.workspace, inlined=liveness.CALLS)

    def _figures_of_schedule(self, step: jax.stages.Compiled) -> dict[str, float]:
        """Returns what the kernels of a step say, and what is sent beside them; of one for TPUs only what is sent."""
        chip = self.chip
        if not chip.kernels and chip.devices == 1:
            return {}

        work = work_of(
            module_of(step),
            devices=chip.devices,
            seconds_of=partial(seconds_of, chip=chip) if chip.kernels else None,
            link_bytes=chip.link_bandwidth or math.inf,
        )
        return {
            "kernels": work.kernels.total(),
            "kernel_seconds": work.kernel_seconds,
            "sent_bytes": work.sent_bytes,
            "hidden_share": work.hidden_share,
        }


def cublas_workspace(capability: str) -> int:
    """Returns the bytes that XLA gives each of cuBLAS's products to work in, by CUDA compute capability like `9.0a`.

    Seen in compiled steps: `int8[33554432]` for an h100, `int8[4194304]` for an a100-40 (notes, "What beliefs are
    off by").
    """
    return 32 * MIB if int(capability.partition(".")[0]) >= 9 else 4 * MIB
