"""What may lie in the host's memory, beside which other levers; what does not go is refused with the reason."""

from collections.abc import Sequence

from plimsoll.errors import RecipeError
from plimsoll.planner.types import Problem, Rates, Static
from plimsoll.types import OFFLOAD_WORDS, OFFLOADED, STORED, Offload, Storage

SUPPORTED = {"optimizer": "offload", "frozen": "frozen_offload"}
"""Part of the state to what a recipe names that can leave it on the host."""
SEARCHED: tuple[Offload, ...] = ("none", "optimizer", "frozen", "all")


def values(problem: Problem, rates: Rates, precisions: Sequence[str]) -> list[Offload]:
    """Values of the lever to search, nothing first; the pinned one alone. Raises RecipeError, with the reason."""
    pinned = problem.pins.get("offload")
    if pinned is None:
        return [
            one
            for one in SEARCHED
            if set(supports(one)) <= set(problem.supported) and not _why_not(problem, rates, precisions, one)
        ]
    if reason := _why_not(problem, rates, precisions, pinned):
        raise RecipeError(f"--offload {pinned} is refused {reason}")
    return [pinned]


def supports(offload: Offload) -> list[str]:
    """What a recipe must support to make use of it."""
    return [word for part, word in SUPPORTED.items() if part in OFFLOADED[offload]]


def no_host(problem: Problem, rates: Rates) -> str | None:
    """Why there is nowhere to put anything."""
    if problem.platform == "cpu":
        return (
            f"on {problem.chip}, where the host's memory is the device's: nothing would be saved. Leave it out, or plan"
            " for an accelerator with --chip"
        )
    if problem.devices > 1:
        return (
            f"on {problem.chip}, which is several devices: nobody has tried that. --fsdp {problem.devices} splits the"
            " state over them"
        )
    if not rates.host_link_bytes:
        return (
            f"on {problem.chip}: how fast it reaches its host's memory is not known, so neither is the time of a step."
            " Say it as host_link_bandwidth in a chip file (docs/chips.md)"
        )
    return None


def not_with(offload: Offload, precision: str, storage: Storage) -> str | None:
    """What else the update does with the optimizer's state, and does on the device."""
    if "optimizer" not in OFFLOADED[offload]:
        return None
    if (storage.optimizer_bits, storage.weight_bits) != (32, 32):
        return (
            f"with --optimizer-bits {storage.optimizer_bits} --weight-bits {storage.weight_bits}: a state in fewer bits"
            " is decoded on the device, and is not streamed. Use one or the other"
        )
    if precision == "float16":
        return (
            "with --precision float16: a step that overflows puts the old state back, which would need all of it on the"
            " device. Use bfloat16, or leave it out"
        )
    return None


def moves(static: Static, offload: Offload) -> bool:
    """Whether every part it names has something that is worth moving."""
    return all(static.movable.get(part, 0) for part in SUPPORTED if part in OFFLOADED[offload])


def require_moved(problem: Problem, static: Static) -> None:
    """Raises RecipeError where what is pinned would move nothing."""
    pinned = problem.pins.get("offload", "none")
    if moves(static, pinned):
        return
    empty = [part for part in SUPPORTED if part in OFFLOADED[pinned] and not static.movable.get(part)]
    words = " or ".join(OFFLOAD_WORDS[part] for part in empty)  # pyright: ignore[reportArgumentType]
    raise RecipeError(
        f"--offload {pinned} would change nothing: {problem.recipe} has no {words} large enough to be moved"
        f"{' (of what is frozen, layers that are stacked along a first axis are)' if 'frozen' in empty else ''}. Leave"
        " it out"
    )


def _why_not(problem: Problem, rates: Rates, precisions: Sequence[str], offload: Offload) -> str | None:
    if offload == "none":
        return None
    if reason := no_host(problem, rates):
        return reason
    pins = problem.pins
    storage = Storage(**{name: pins[name] for name in STORED if name in pins})
    return not_with(offload, precisions[0], storage)  # more than one never has float16 among them
