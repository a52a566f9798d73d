"""Determinism on a GPU: whether the compiler fixes the order of sums, so that two runs of a plan are equal to the bit.

By default XLA chooses kernels for an NVIDIA GPU by timing them, and some add in the order in which threads finish: on
an H100 three runs of one plan differed from step 10 on. Deterministic runs give up that timing and Triton's products
(options: `training/program.py`; openxla/xla #14125; notes, "Determinism on cards"). They also give up cuDNN's faster
and smaller backward pass of attention (levers/cudnn_workspace.py). Other bytes of a step may grow or shrink, because
casts are no longer fused into products.
"""

from __future__ import annotations

from plimsoll.levers.lever import Lever, Problem, Rates


def _without_effect(problem: Problem, _rates: Rates, value: bool) -> str | None:
    if value or problem.platform == "cuda":
        return None
    return f"would change nothing on {problem.chip}: only the compiler for NVIDIA GPUs has this option. Leave it out"


DETERMINISTIC = Lever(
    name="deterministic",
    type=bool,
    help="Whether two runs on an NVIDIA GPU have equal results. False lets the compiler choose the fastest kernels.",
    plain=True,
    touches="mixed",
    by_user=True,
    refused=_without_effect,
    words="not deterministic",
    row="no: two runs of this plan differ by rounding",
)
