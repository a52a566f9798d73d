"""Parts of the state that may lie in the host's memory, and conflicts with other levers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.lever import LeftOut, Lever, Problem, Rates, Rung, Support, Values
from plimsoll.levers.records.precision import PRECISION
from plimsoll.types import Offload

OFFLOADED: Mapping[Offload, tuple[str, ...]] = {
    "none": (),
    "frozen": ("frozen",),
    "optimizer": ("optimizer", "ema"),
    "all": ("optimizer", "ema", "frozen"),
}
"""Parts of the state in the host's memory, by value of the lever."""
OFFLOAD_WORDS: Mapping[str, str] = {
    "none": "nothing",
    "frozen": "frozen weights",
    "optimizer": "optimizer state",
    "all": "optimizer state and frozen weights",
}
SUPPORTED_AS = {"optimizer": "offload", "frozen": "frozen_offload"}
"""Map from a part of the state to the name in `Hints.levers` by which a recipe claims that it can stay on the host."""


def no_host(problem: Problem, rates: Rates) -> str | None:
    """Returns the reason why a chip cannot offload, or None."""
    if problem.platform == "cpu":
        return (
            f"on {problem.chip}, where the host's memory is the device's: nothing would be saved. Leave it out, or plan"
            " for an accelerator with --chip"
        )
    if not rates.host_link_bytes:
        return (
            f"on {problem.chip}: how fast it reaches its host's memory is not known, so neither is the time of a step."
            " Say it as host_link_bandwidth in a chip file (docs/chips.md)"
        )
    return None


def _not_with(offload: Offload, levers: Values) -> str | None:
    """Returns the reason why other levers need the optimizer's state on the device, or None."""
    if "optimizer" not in OFFLOADED[offload]:
        return None
    if (levers["optimizer_bits"], levers["weight_bits"]) != (32, 32):
        return (
            f"with --optimizer-bits {levers['optimizer_bits']} --weight-bits {levers['weight_bits']}: a state in fewer"
            " bits is decoded on the device, and is not streamed. Use one or the other"
        )
    if levers["precision"] == "float16":
        return (
            "with --precision float16: a step that overflows restores the old state, which would need all of it on the"
            " device. Use bfloat16, or leave it out"
        )
    return None


def _goes_with(levers: Values, _tried: Mapping[str, Sequence[Any]]) -> bool:
    return _not_with(levers["offload"], levers) is None


def _refused(problem: Problem, rates: Rates, value: Offload) -> str | None:
    if value == "none":
        return None
    bits = {name: problem.pins.get(name, 32) for name in ("optimizer_bits", "weight_bits")}
    precision = PRECISION.tried(problem, rates)[0]  # float16 is only ever tried alone
    reason = no_host(problem, rates) or _not_with(value, {**bits, "precision": precision})
    return None if reason is None else f"is refused {reason}"


def _none_on_a_cpu(_recipe: Any, _levers: Values) -> str:
    raise LeftOut(
        "a ladder that is trained runs on this machine's CPU, where the host's memory is the device's; `plimsoll plan"
        " --offload optimizer --chip NAME` says what it saves on a card"
    )


OFFLOAD = Lever(
    name="offload",
    type=Offload,
    help=(
        "Parts of the state in the host's memory instead of the accelerator's: frozen weights, the optimizer's state"
        " (with the EMA weights), or all of these."
    ),
    plain="none",
    supports=(Support("offload", owner="optimizer"), Support("frozen_offload")),
    needs=lambda value: [name for part, name in SUPPORTED_AS.items() if part in OFFLOADED[value]],
    worth_trying=lambda problem, rates: ("none", "optimizer", "frozen", "all"),
    refused=_refused,
    goes_with=_goes_with,
    rungs=(Rung(name="offload", words="the optimizer's state lies on the host", value=_none_on_a_cpu),),
    words={value: f"{words} on the host" for value, words in OFFLOAD_WORDS.items()},
    row={value: f"{words}, in the host's memory" for value, words in OFFLOAD_WORDS.items()},
)
