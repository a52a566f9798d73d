"""Choice of whether a GPU's compiler keeps to one order of sums, so that two runs of a plan are equal to the last bit.

By default XLA chooses kernels for an NVIDIA GPU by timing them, and some add in whatever order their threads finish:
on an H100 three runs of one plan parted at step 10. What is given up for equal runs are Triton's products and that
timing (the options: `training/program.py`; openxla/xla #14125; notes, "Determinism on cards"), and cuDNN's
faster backward pass of attention, of fewer bytes (levers/cudnn_workspace.py). A step's other bytes may be more or fewer
then: casts are no longer fused into products.
"""

from __future__ import annotations

from plimsoll.levers.lever import Lever, Problem, Rates


def _without_effect(problem: Problem, _rates: Rates, value: bool) -> str | None:
    if value or problem.platform == "cuda":
        return None
    return (
        f"would change nothing on {problem.chip}: of the compilers only that of NVIDIA GPUs has this choice. Leave it"
        " out"
    )


DETERMINISTIC = Lever(
    name="deterministic",
    type=bool,
    help="Equal results of two runs on an NVIDIA GPU; False lets the compiler take the kernels it times fastest.",
    plain=True,
    touches="mixed",
    by_user=True,
    refused=_without_effect,
    words="not deterministic",
    row="no: two runs of this plan differ by rounding",
)
