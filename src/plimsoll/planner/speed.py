"""How long a step takes, before it has run: a roofline with the chip's rates.

Dots at the rate of their precision, plus moving what does not stay in the cache, plus the first touch of the step's
temporaries, plus what devices send each other or fetch from their host, plus a fixed price per step, per micro-batch
and, on a CPU, per dot. Good for ranking plans; `measure` says what it really is.

Of a GPU whose compiler has seen the step, its kernels take the place of dots and moves: each at the rate of its own
shape (kernel_seconds.py). What they cost to start is added, compiled or not.

What is moved is told by the temporaries on a CPU, whose cache holds most of a small micro-batch, and by the operands
of the dots on an accelerator: what is recomputed there is moved again, though it never is all there at once.
"""

from plimsoll.planned import Plan
from plimsoll.planner.types import Analysis, Rates, Static

MOVES_PER_BYTE = 3.0
"""A temporary is written in the forward pass, read in the backward pass, and its gradient written."""
MOVES_PER_OPERAND = 1.5
"""Between two dots what the first wrote is read and written once more: norms, activations, softmax."""
KERNELS_OF_A_MICRO_BATCH = 1_300
"""Kernels of a micro-batch that no compiler has seen: the median of plimsoll's own four models in
tests/planner/card_steps.json, which have 472 to 4,067."""
ESTIMATED_OVER_MEASURED = (0.75, 1.47)
"""Least and most of the steps in tests/planner/card_steps.json whose time the kernels explain (docs/chips.md)."""
CHUNKED_OVER_MEASURED = 0.44
"""Least of those with the loss in chunks: one took 2.3 times as long as its kernels and bytes explain."""
RATED_OVER_MEASURED = (0.37, 1.95)
"""The same of the rates alone, with no compiler: plimsoll's own six steps on an H100 and two on an H200. No step of a
TPU was ever timed."""
UNTIMED = (0.6, 1.6)
"""Seconds by the clock over those by the rates, of a CPU's plan of a model of which nothing was timed yet."""


def step_seconds(
    plan: Plan, analysis: Analysis, static: Static, rates: Rates, *, devices: int = 1, sharing: int = 1
) -> float:
    """Returns seconds of one optimizer step. `sharing` devices have `rates` together, as those of one CPU.

    What devices send one another is hidden behind arithmetic for `analysis.hidden_share` of its time, and no longer
    than there is arithmetic.
    """
    if analysis.kernel_seconds:  # between compiled micro-batches and beyond them it is a line: not below the arithmetic
        work = max(analysis.kernel_seconds, analysis.flops / (devices * rates.flops[plan.precision]))
    else:
        work = _dots_and_moves(plan, analysis, static, rates, devices=devices, sharing=sharing)
    sent = 0.0
    if devices > 1:
        seconds = sharing * (analysis.sent_bytes or sent_bytes(plan, static, devices=devices)) / rates.link_bytes
        sent = max(seconds * (1 - analysis.hidden_share), seconds - work)
    between = host_bytes(plan, static) + 2.0 * plan.accumulation * analysis.host_temp_bytes
    fetched = between / rates.host_link_bytes if between else 0.0
    started = analysis.dots * rates.dot_seconds + plan.accumulation * rates.loop_seconds
    launched = analysis.kernels * rates.launch_seconds + rates.call_seconds
    return work + sent + fetched + started + launched


def _dots_and_moves(
    plan: Plan, analysis: Analysis, static: Static, rates: Rates, *, devices: int, sharing: int
) -> float:
    """Returns the seconds of a step's arithmetic and of what it moves in its own memory."""
    arithmetic = analysis.flops * sharing / (devices * rates.flops[plan.precision])
    gradient = static.parameter_bytes if plan.accumulation > 1 else 0
    activations = max(0, analysis.temp_bytes - gradient)
    if analysis.moved_bytes:
        touched = MOVES_PER_OPERAND * analysis.moved_bytes / devices
    else:
        touched = plan.accumulation * MOVES_PER_BYTE * activations
    moved = sharing * (touched + plan.accumulation * 3 * gradient + 3 * static.state_bytes)
    first_touch = sharing * analysis.temp_bytes / rates.first_touch_bytes
    return arithmetic + moved / rates.copy_bytes + first_touch


def range_of(seconds: float, source: str, *, platform: str, loss_chunk: int) -> tuple[float, float] | None:
    """Returns the least and the most that a step may take, as measured ones did; None for one that was timed.

    Args:
        seconds: What is said of the step.
        source: "measured", "kernels" or "roofline" (`Planned.step_seconds_source`).
        platform: Of the chip.
        loss_chunk: Of the plan.
    """
    if source == "measured":
        return None
    if platform == "cpu":
        least, most = UNTIMED
        return seconds * least, seconds * most
    least, most = ESTIMATED_OVER_MEASURED if source == "kernels" else RATED_OVER_MEASURED
    if loss_chunk:
        least = min(least, CHUNKED_OVER_MEASURED)
    return seconds / most, seconds / least


def host_bytes(plan: Plan, static: Static) -> float:
    """Returns the bytes between a device and its host in one step.

    What is updated comes and goes once, and not at the same time; frozen weights come for the forward and for the
    backward pass of every micro-batch. Nothing is taken to be hidden behind arithmetic: the update begins when the
    whole gradient is there.
    """
    moved = static.on_host(plan.offload)
    frozen = moved.pop("frozen", 0)
    return 2.0 * (sum(moved.values()) + plan.accumulation * frozen)


def sent_bytes(plan: Plan, static: Static, *, devices: int) -> float:
    """Returns bytes that a device sends in a step, in rings: 2 (n-1)/n of a sum over n devices, (n-1)/n of a gather.

    Every micro-batch gathers the weights twice (forward, backward) and scatters their gradient over the `fsdp`
    devices that share them; what is left is summed over the others once a step. Rajbhandari et al. 2019, section 7.
    """
    copies = devices // plan.fsdp
    shared = static.parameter_bytes * plan.fsdp
    gathered = 3 * shared * (plan.fsdp - 1) / plan.fsdp
    summed = 2 * static.parameter_bytes * (copies - 1) / copies
    return plan.accumulation * gathered + summed
