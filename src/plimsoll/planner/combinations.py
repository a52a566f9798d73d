"""What the search may try: every combination of the levers, from the fastest to the smallest, less what is refused.

Pinned levers keep their value; a pin that is impossible on this chip, or beside another one, is refused here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.planner import layerwise, offloading
from plimsoll.planner.types import Problem, Rates, Static
from plimsoll.types import Storage

FASTER = 1.05
"""A precision this much faster than float32 is worth its rounding."""


def micro_batches(problem: Problem) -> list[int]:
    """Divisors of the effective batch that every device gets a share of, the pinned one alone if it is pinned."""
    pinned, devices = problem.pins.get("micro_batch"), problem.devices
    if problem.effective_batch % devices:
        raise RecipeError(
            f"the effective batch of {problem.effective_batch} examples (--batch-size x --gradient-accumulation-steps)"
            f" cannot be divided among the {devices} devices of {problem.chip}: choose a multiple of {devices}"
        )
    if pinned is None:
        whole = problem.effective_batch // devices
        small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
        return [n * devices for n in sorted({*small, *(whole // n for n in small)})]
    if pinned < 1 or problem.effective_batch % pinned:
        raise RecipeError(
            f"--micro-batch {pinned} does not divide the effective batch of {problem.effective_batch} examples"
            " (--batch-size x --gradient-accumulation-steps): choose a divisor of it"
        )
    if pinned % devices:
        raise RecipeError(
            f"--micro-batch {pinned} cannot be divided among the {devices} devices of {problem.chip}: choose a"
            f" multiple of {devices}"
        )
    return [pinned]


def combinations(problem: Problem, rates: Rates) -> Iterator[dict[str, Any]]:
    """From the fastest to the smallest; pinned levers keep their value."""
    pins = problem.pins
    precisions = [_possible(pins["precision"], problem, rates)] if "precision" in pins else _precisions(problem, rates)
    remats = _remats(problem, rates)
    chunks = [pins["loss_chunk"]] if "loss_chunk" in pins else _loss_chunks(problem)
    blocks = [pins["attention_chunk"]] if "attention_chunk" in pins else _attention(problem)
    remats = remats if "remat" in problem.supported else ["none"]
    chunks = chunks if "loss_chunk" in problem.supported else [0]
    blocks = blocks if "attention_chunk" in problem.supported else [0]
    offloads = offloading.values(problem, rates, precisions)
    # Updates layer by layer last: their bytes are paid for in arithmetic, under a clip with 7/4 of that of the layers.
    for passes, precision, fsdp, offload, remat, chunk, block, storage in itertools.product(
        layerwise.passes(problem, precisions),
        precisions,
        _splits(problem),
        offloads,
        remats,
        chunks,
        blocks,
        storages(problem),
    ):
        if passes and (remat != "block" or precision == "float16" or offload != "none"):
            continue
        if offloading.not_with(offload, precision, storage) is not None:
            continue
        if remat == "none" or chunk or len(chunks) == 1:  # recomputing blocks while keeping all logits saves little
            yield {
                "precision": precision,
                "remat": remat,
                "loss_chunk": chunk,
                "attention_chunk": block,
                "layerwise": passes,
                "fsdp": fsdp,
                "offload": offload,
                "storage": storage,
            }


def _loss_chunks(problem: Problem) -> list[int]:
    whole = problem.loss_whole or not problem.loss_chunks
    return [0, *problem.loss_chunks] if whole else list(problem.loss_chunks)


def _attention(problem: Problem) -> list[int]:
    """On a CPU blocks are faster, too, where they are worth it; a chip's own kernel is faster than blocks."""
    if problem.platform == "cpu" and problem.attention_chunks:
        return list(problem.attention_chunks)
    return [0, *problem.attention_chunks]


def storages(problem: Problem) -> list[Storage]:
    """Whole, then in fewer bits where `--numerics compressed` allows it and the optimizer can."""
    pins = problem.pins

    def of(lever: str, smaller: list[Any]) -> list[Any]:
        if lever in pins:
            return [pins[lever]]
        allowed = problem.numerics == "compressed" and lever in problem.supported
        return [32, *smaller] if allowed and problem.devices == 1 else [32]  # split over devices: not measured yet

    forms = {
        "optimizer_bits": of("optimizer_bits", [8]),
        "frozen_bits": of("frozen_bits", [16, 8, 4]),
        "ema_bits": of("ema_bits", [16]),
        "weight_bits": of("weight_bits", [24, 16]),
    }
    now: dict[str, Any] = {lever: form[0] for lever, form in forms.items()}
    found = [Storage(**now)]
    for lever, form in forms.items():  # one after another: first the state, which loses least
        for bits in form[1:]:
            now[lever] = bits
            found.append(Storage(**now))
    return found


def _splits(problem: Problem) -> list[int]:
    """Devices that may share one copy of the state: one, or all of them."""
    pinned, devices = problem.pins.get("fsdp"), problem.devices
    if pinned is None:
        return sorted({1, devices})
    if devices % pinned:
        raise RecipeError(
            f"--fsdp {pinned} does not divide the {devices} device{'s' if devices > 1 else ''} of {problem.chip}:"
            " choose a divisor of that"
        )
    return [pinned]


def _remats(problem: Problem, rates: Rates) -> list[str]:
    """From the fastest to the smallest; to the host where there is another one, and its link has a rate."""
    pinned = problem.pins.get("remat")
    if pinned == "offload" and (reason := offloading.no_host(problem, rates)):
        raise RecipeError(f"--remat offload is refused {reason}")
    if pinned is not None:
        return [pinned]
    may = "remat_offload" in problem.supported and offloading.no_host(problem, rates) is None
    return ["none", "dots", "block", *(["offload"] if may else [])]


def _precisions(problem: Problem, rates: Rates) -> list[str]:
    if problem.numerics == "exact" or "precision" not in problem.supported:
        return ["float32"]
    if "bfloat16" not in rates.flops:  # the chip has no units for it
        return ["float16"] if rates.flops.get("float16", 0.0) > FASTER * rates.flops["float32"] else ["float32"]
    faster = rates.flops["bfloat16"] > FASTER * rates.flops["float32"]
    return ["bfloat16"] if faster else ["float32", "bfloat16"]  # the second for its bytes, where the first does not fit


def _possible(precision: str, problem: Problem, rates: Rates) -> str:
    if precision in rates.flops:
        return precision
    raise RecipeError(
        f"--precision {precision} is not to be had on {problem.chip}, which has no units for it: it has"
        f" {', '.join(rates.flops)}"
    )


def require_narrower(problem: Problem, static_of: Callable[[Storage], Static]) -> None:
    """Raises RecipeError where weights or state are to be kept in fewer bits, and none of this model's can be."""
    for name, what in (("optimizer_bits", "optimizer state"), ("weight_bits", "weights")):
        bits = problem.pins.get(name, 32)
        if bits != 32 and static_of(Storage(**{name: bits})).state_bytes >= static_of(Storage()).state_bytes:
            raise RecipeError(
                f"--{name.replace('_', '-')} {bits} would change nothing: {problem.recipe} has no {what} that can be"
                " kept in fewer bits. Norms, biases, leaves of less than 4,096 weights and those that are not whole"
                " blocks of 64 stay in float32, and so does the state of embeddings. Leave it out"
            )
