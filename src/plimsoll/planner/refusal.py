"""No plan fits: the smallest that was found, what it is made of, and what would help."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll.errors import BudgetError
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.registry import LEVERS, in_words
from plimsoll.planned import HostLedger, Ledger
from plimsoll.planner.candidates import Candidate
from plimsoll.planner.estimate import LOADING_BYTES
from plimsoll.planner.types import Problem, Static
from plimsoll.units import MIB, format_budget, format_bytes

PROCESSES_DIFFER = 1.15
"""Ratio of the heaviest process to the lightest, whichever levers are on: above it none helps the process to fit."""


CANNOT_RUN = "cannot run: "
"""Beginning of a reason why a plan that compiles is left out."""

NO_KERNEL = "raw_hash_map"
"""In XLA's error where a step asks for a kernel that was not made."""

WouldFit = Callable[..., Candidate | None]
"""The plan of this problem with some fields changed; None where none fits either."""


def refusal(
    problem: Problem,
    static: Static,
    least: Candidate | None,
    failures: list[str],
    would_fit: WouldFit,
    seconds_missed: Callable[[], float] = float,
) -> BudgetError:
    """Returns the refusal.

    Args:
        problem: What was planned.
        static: Bytes of its state.
        least: The smallest plan; None where nothing compiles.
        failures: Why what did not compile did not.
        would_fit: Looks for the plan of the problem with other fields: no lever is advised that would not help.
        seconds_missed: Returns the seconds that `would_fit` was given, if they ended before an answer; 0 otherwise.
    """
    if least is None and failures and all(failure.startswith(CANNOT_RUN) for failure in failures):
        return BudgetError(
            f"no plan of {problem.recipe} runs on {problem.chip}: of {len(failures)} that compile, each failed when it"
            f" was timed (the first: {failures[0]}). {_why_none_runs(failures[0])}",
            budget_bytes=problem.budget_bytes,
            floor_bytes=None,
        )
    if least is None:
        return BudgetError(
            f"{problem.recipe} does not compile for {problem.chip}: {'; '.join(failures) or 'no plan to try'}",
            budget_bytes=problem.budget_bytes,
            floor_bytes=None,
        )
    host, needed = least.ledger.host, least.ledger.needed_bytes
    if host is not None and not host.fits and needed <= problem.budget_bytes:
        assert host.budget_bytes is not None
        budget, floor, option, rest = host.budget_bytes, host.predicted_peak_bytes, "--host-memory", ""
        where = f"of a host's memory beside {problem.chip} (--host-memory)"
        parts = _components_text(host)
    else:
        budget, floor, option, where = problem.budget_bytes, needed, "--memory", f"on {problem.chip}"
        spare = least.ledger.spare_bytes
        parts = _components_text(least.ledger) + (f" and {format_bytes(spare)} kept free" if spare else "")
        parts += f"\n  settings of that plan: micro-batch {least.plan.micro_batch}, {in_words(least.plan.levers)}"
        way_out = _way_out(problem, least, would_fit)
        rest = _advice(problem, static, least, would_fit, one_pin_will_do=bool(way_out))
        if seconds := seconds_missed():
            rest += f", or --within {2 * seconds:.0f}s, to find what else would help: {seconds:.0f} s did not do"
        rest += way_out
    enough = format_budget(floor) if option == "--host-memory" else enough_memory(least.ledger)
    return BudgetError(
        f"no plan for {problem.recipe} fits in {format_bytes(budget)} {where}\n"
        f"  smallest found: {format_bytes(floor)} = {parts}\n"
        f"  you could: {option} {enough}{rest}",
        budget_bytes=budget,
        floor_bytes=floor,
    )


def enough_memory(ledger: Ledger) -> str:
    """Returns the least budget that such a plan is accepted with and holds, as `--memory` takes it."""
    starts_differ = LOADING_BYTES if ledger.phase == "load" else 0
    return format_budget(ledger.needed_bytes + starts_differ)


def _why_none_runs(failure: str) -> str:
    if NO_KERNEL in failure:
        return (
            "So ends a step with several equal calls of cuDNN's attention by JAX's own function, compiled to add in one"
            " order (openxla/xla #46500): --deterministic False gives that up"
        )
    return "`plimsoll doctor` says whether the device can be used"


def _way_out(problem: Problem, least: Candidate, would_fit: WouldFit) -> str:
    """Returns the one pin that, set free, would make a plan fit, and the value it would have; empty if none would."""
    ways = []
    process = least.ledger.predicted.get("process", 0)
    if problem.pinned_by is not None or process > PROCESSES_DIFFER * problem.budget_bytes:
        return ""
    for pin in problem.pins:
        free = would_fit(pins={name: value for name, value in problem.pins.items() if name != pin})
        if free is not None:
            ways.append((free.ledger.needed_bytes, pin, getattr(free.plan, pin)))
    if not ways:
        return ""
    needed, pin, value = max(ways, key=lambda way: way[0])
    flag = pin.replace("_", "-")
    return f"\n  the smallest change to what you set: --{flag} {value}, which needs {format_bytes(needed)}"


def _advice(problem: Problem, static: Static, least: Candidate, would_fit: WouldFit, *, one_pin_will_do: bool) -> str:
    """Returns what else would help, as further parts of a sentence."""
    over = least.ledger.needed_bytes - problem.budget_bytes
    hints = []
    if least.ledger.phases.get("load", 0) > PROCESSES_DIFFER * problem.budget_bytes:
        return ""
    if problem.pinned_by is not None:
        hints.append(f"leave out {problem.pinned_by}, and a plan that fits is searched for")
    elif problem.pins and (one_pin_will_do or would_fit(pins={}) is not None):
        hints.append("leave out " + ", ".join(f"--{name.replace('_', '-')}" for name in sorted(problem.pins)))
    for numerics in CLASSES[CLASSES.index(problem.numerics) + 1 :]:  # type: ignore[arg-type]
        names = {support.name for lever in LEVERS.values() if lever.touches == numerics for support in lever.supports}
        if names & {*problem.supported} and would_fit(numerics=numerics) is not None:
            hints.append(f"--numerics {numerics}")
    if problem.data_advice and least.ledger.predicted.get("data", 0) > over:
        hints.append(problem.data_advice)
    if problem.rate_unit == "tokens" and least.ledger.predicted.get("step temporaries", 0) > over:
        hints.append("a shorter --seq-len")
    if static.state_bytes > over:
        saved = 1 - over / static.state_bytes
        hints.append(f"a model of {static.parameters * saved:,.0f} parameters or fewer")
    return "".join(f", or {hint}" for hint in hints)


def _components_text(ledger: Ledger | HostLedger) -> str:
    parts = sorted(ledger.predicted.items(), key=lambda item: -item[1])
    named = " + ".join(f"{name} {size / MIB:.0f}" for name, size in parts if size >= MIB)
    return f"{named} (MiB), in the phase '{ledger.phase}'"
