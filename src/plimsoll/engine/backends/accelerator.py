"""Memory and speed of a training step on an accelerator, from the compiled step or from its jaxpr."""

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
    """Analysis of training steps for one accelerator chip, which may be absent."""

    counts_every_dot = False
    """True if a step's jaxpr shows all matmuls. False here, because an attention kernel hides its matmuls."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        capability = chip.compiler.get("compute_capability") if chip.platform == "cuda" else None
        self.workspace = 0 if capability is None else cublas_workspace(capability)
        """Bytes of workspace that cuBLAS adds to a matmul's operands and result; 0 without cuBLAS."""

    def analysis(self, step: jax.stages.Compiled, counted: Dots) -> Analysis:
        """Returns bytes per device and kernels of a compiled step, with the FLOPs and moved bytes of `counted`."""
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
        """Estimates bytes, FLOPs and kernels of a step from the jaxpr of one device's part of the step.

        Args:
            share: Jaxpr of one device's part of the step.
            micro_batches: Micro-batches in the step.
        """
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
        """Estimates the bytes of a function's temporaries on one device, from the jaxpr `share`."""
        return liveness.temporary_bytes(share, workspace=self.workspace, inlined=liveness.CALLS)

    def _figures_of_schedule(self, step: jax.stages.Compiled) -> dict[str, float]:
        """Returns fields of `Analysis` of a compiled step: its kernels (on a GPU), and bytes sent between devices."""
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
    """Returns the bytes of workspace that XLA gives each cuBLAS matmul.

    Seen in compiled steps: `int8[33554432]` for an h100, `int8[4194304]` for an a100-40 (notes, "What beliefs are
    off by").

    Args:
        capability: CUDA compute capability, like `9.0a`.
    """
    return 32 * MIB if int(capability.partition(".")[0]) >= 9 else 4 * MIB
