"""Estimate of the seconds of a training step before it runs: a roofline model with the chip's rates.

The estimate is a sum: matmuls at the rate of their precision, memory traffic beyond the cache, the first touch of the
step's temporaries, transfers between devices and from their host, and fixed overheads per step, per micro-batch and,
on a CPU, per matmul. It serves to rank plans; `Compiler.measure` times them.

For a step that is compiled for a GPU, the times of its kernels replace those of matmuls and memory traffic
(kernel_seconds.py). The launches of kernels are added, whether the step is compiled or not.

On a CPU, memory traffic is estimated from the temporaries, because the cache holds most of a small micro-batch. On an
accelerator it is estimated from the operands of matmuls, because recomputed values are moved again.
"""

from plimsoll.planned import Plan
from plimsoll.planner.types import Analysis, Rates, Static

MOVES_PER_BYTE = 3.0
"""Moves of each byte of a temporary: written in the forward pass, read in the backward pass, and its gradient
written."""
MOVES_PER_OPERAND = 1.5
"""Moves of each byte of a matmul's operand or result, with the reads and writes of norms, activations and softmax
between matmuls."""
KERNELS_OF_A_MICRO_BATCH = 1_300
"""Assumed kernels of a micro-batch that was not compiled: the median of plimsoll's own four models in
tests/planner/card_steps.json, which have 472 to 4,067."""
ESTIMATED_OVER_MEASURED = (0.75, 1.47)
"""Lowest and highest ratio of a step's estimated to measured seconds, for estimates from kernels: over the steps in
tests/planner/card_steps.json without a chunked loss (docs/chips.md)."""
CHUNKED_OVER_MEASURED = 0.44
"""Lowest ratio of a step's estimated to measured seconds with the loss in chunks: one step took 2.3 times its
estimate."""
RATED_OVER_MEASURED = (0.37, 1.95)
"""Lowest and highest ratio of a step's estimated to measured seconds, for estimates from rates alone: six steps of
plimsoll's models on an H100 and two on an H200. No step on a TPU was ever timed."""
UNTIMED = (0.6, 1.6)
"""Assumed lowest and highest ratio of timed to estimated seconds, for a model of which a CPU has timed no plan."""


def step_seconds(
    plan: Plan, analysis: Analysis, static: Static, rates: Rates, *, devices: int = 1, sharing: int = 1
) -> float:
    """Returns the estimated seconds of one optimizer step.

    Transfers between devices overlap with computation for the share `analysis.hidden_share` of their time, but no
    longer than the computation takes.

    Args:
        plan: The plan.
        analysis: The compiler's figures for the plan's step.
        static: Bytes of the plan's training state.
        rates: Rates of one chip.
        devices: Number of devices.
        sharing: Number of devices that share the rates of one chip, like the devices that JAX makes of one CPU.
    """
    if analysis.kernel_seconds:  # no faster than the arithmetic at the chip's rate
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
    """Returns the seconds of a step's arithmetic and of its memory traffic."""
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
    """Returns the lowest and highest likely seconds of a step; None for a step that was timed.

    Args:
        seconds: Estimated seconds of the step.
        source: Source of the estimate: "measured", "kernels" or "roofline" (`Planned.step_seconds_source`).
        platform: Platform of the chip.
        loss_chunk: Tokens per chunk of the loss; 0 for a loss without chunks.
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
    """Returns the bytes of offloaded state that move between a device and its host in one step.

    State that the step updates moves to the device and back once. Frozen weights move to the device for each forward
    and each backward pass. No transfer is assumed to overlap with computation, because the update needs the whole
    gradient.
    """
    moved = static.on_host(plan.offload)
    frozen = moved.pop("frozen", 0)
    return 2.0 * (sum(moved.values()) + plan.accumulation * frozen)


def sent_bytes(plan: Plan, static: Static, *, devices: int) -> float:
    """Returns the bytes that a device sends in a step, with collectives in rings.

    In a ring of n devices, each sends 2 (n-1)/n of the bytes of a sum, and (n-1)/n of those of a gather or scatter.
    Every micro-batch gathers the weights twice (forward and backward pass), and scatters their gradient over the
    `fsdp` devices that share the weights. Once per step the gradient is summed over the copies of the state.
    Rajbhandari et al. 2019, section 7.
    """
    copies = devices // plan.fsdp
    shared = static.parameter_bytes * plan.fsdp
    gathered = 3 * shared * (plan.fsdp - 1) / plan.fsdp
    summed = 2 * static.parameter_bytes * (copies - 1) / copies
    return plan.accumulation * gathered + summed
