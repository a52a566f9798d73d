"""Levers: size of micro-batches, split of the state over devices, prefetched batches, and saving in the background."""

from __future__ import annotations

import math

from plimsoll.levers.lever import LeftOut, Lever, Problem, Rates, Rung, Values

PREFETCH = (2, 1, 0)
"""Numbers of prefetched batches that the planner tries, fastest first."""


def _near_the_root(problem: Problem, _levers: Values) -> int:
    """Returns the divisor of the effective batch nearest to its square root."""
    whole, together = problem.effective_batch, problem.normalised_together
    between = [n for n in range(2, whole) if whole % n == 0 and n % together == 0]
    if not between:
        of = f" that is a multiple of {together}" if together > 1 else ""
        raise LeftOut(f"an effective batch of {whole} has no divisor between 1 and itself{of}")
    return min(between, key=lambda n: abs(math.log(n / math.sqrt(whole))))


def _single(problem: Problem, levers: Values) -> int:
    if problem.normalised_together > 1:
        raise LeftOut(f"{problem.normalised_together} examples are normalised together")
    if levers["micro_batch"] == 1:
        raise LeftOut("the micro-batch is 1 already")
    return 1


MICRO_BATCH = Lever(
    name="micro_batch",
    type=int,
    least=1,
    help="Examples that go through the model at a time; divides the effective batch of a step.",
    plain=None,
    by_itself=True,
    rungs=(
        Rung(name="micro-batch", words="{} examples at a time", value=_near_the_root),
        Rung(name="micro-batch-1", words="one example at a time", value=_single),
    ),
    words="",
    label="effective batch",
    row="{plan.effective_batch} = micro-batch {value} x accumulation {plan.accumulation}",
)


def _does_not_divide(problem: Problem, _rates: Rates, value: int) -> str | None:
    if problem.devices % value == 0:
        return None
    return (
        f"does not divide the {problem.devices} device{'s' if problem.devices > 1 else ''} of {problem.chip}: choose a"
        " divisor of that"
    )


FSDP = Lever(
    name="fsdp",
    type=int,
    least=1,
    help="Devices over which parameters and optimizer state are split (FSDP); 1 keeps a whole copy on each.",
    plain=1,
    worth_trying=lambda problem, rates: [n for n in range(1, problem.devices + 1) if problem.devices % n == 0],
    refused=_does_not_divide,
    words="state over {value}",
    row="",  # the row of the devices shows it
)


PREFETCHED = Lever(
    name="prefetch",
    type=int,
    help="Batches that a background thread prepares in advance.",
    plain=max(PREFETCH),
    compiled=False,
    by_itself=True,
    rungs=(Rung(name="prefetch", words="no batch is made ready in the background", value=0),),
    words="",
    row="{value} batch(es)",
    plain_row="{value} batches",
)

ASYNC_SAVE = Lever(
    name="async_save",
    type=bool,
    help="Write checkpoints while training goes on, which needs a second copy of the state. False pauses training.",
    plain=True,
    compiled=False,
    by_itself=True,
    rungs=(Rung(name="save", words="training waits for a save: no second copy of the state", value=False),),
    words="",
    label="save",
    row="training waits",
    plain_row="in the background, with a second copy of the state",
)
