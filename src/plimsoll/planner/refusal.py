"""Error message for a budget that no plan fits: the smallest plan, its components, and changes that would help."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll.errors import BudgetError
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.registry import LEVERS, in_words
from plimsoll.planned import HostLedger, Ledger
from plimsoll.planner.bytes import STEP, TRIED
from plimsoll.planner.evidence import Failure
from plimsoll.planner.explain import Priced
from plimsoll.planner.types import Problem, Static
from plimsoll.units import MIB, format_budget, format_bytes

WouldFit = Callable[..., bool]
"""Function that takes changed fields of the problem as keywords. Returns True if a plan then fits the budget."""


def refusal(
    problem: Problem,
    static: Static,
    least: Priced | None,
    failures: list[Failure],
    would_fit: WouldFit,
) -> BudgetError:
    """Returns the error for a budget that no plan fits.

    Args:
        problem: The planning problem.
        static: Bytes of the problem's state.
        least: The smallest plan; None if no plan compiles.
        failures: Failures to compile or run a plan.
        would_fit: Checks the problem with changed fields, so that only changes that help are recommended.
    """
    if least is None:
        reason = f"{len(failures)} failed, the first as {failures[0].why}" if failures else "there is none to try"
        return BudgetError(
            f"no plan of {problem.recipe} compiles and runs on {problem.chip}: {reason}. `plimsoll doctor` checks"
            " whether the device can be used",
            budget_bytes=problem.budget_bytes,
            floor_bytes=None,
        )

    # Either the host's budget is too small, or the device's.
    ledger = least.ledger
    host = ledger.host
    if host is not None and not host.fits and ledger.needed_bytes <= problem.budget_bytes:
        place = f"of a host's memory beside {problem.chip} (--host-memory)"
        return _too_small(problem, least, host, place, [f"--host-memory {format_budget(host.needed_bytes)}"])
    changes = [_memory(problem, ledger), *_advice(problem, static, least, would_fit)]
    return _too_small(problem, least, ledger, f"on {problem.chip}", changes)


def _too_small(
    problem: Problem, least: Priced, ledger: Ledger | HostLedger, place: str, changes: list[str]
) -> BudgetError:
    """Returns the error for the budget of a device or a host, with the components of its ledger."""
    assert ledger.budget_bytes is not None
    source = "found" if least.ledger.source == "compiled" else "estimated, without a compiler"
    parts = sorted(ledger.components.items(), key=lambda item: -item[1])
    named = " + ".join(f"{name} {size / MIB:.0f}" for name, size in parts if size >= MIB)
    needed = format_bytes(ledger.needed_bytes)
    spare = f" and {format_bytes(ledger.spare_bytes)} kept free" if ledger.spare_bytes else ""
    return BudgetError(
        f"no plan for {problem.recipe} fits in {format_bytes(ledger.budget_bytes)} {place}\n"
        f"  smallest {source}: {needed} = {named} (MiB), in the phase '{ledger.phase}'{spare}\n"
        f"  settings of that plan: micro-batch {least.plan.micro_batch}, {in_words(least.plan.levers)}\n"
        f"  you could: {', or '.join(changes)}",
        budget_bytes=ledger.budget_bytes,
        floor_bytes=ledger.needed_bytes,
    )


def _memory(problem: Problem, least: Ledger) -> str:
    """Returns the options with budgets that the smallest plan fits, or the advice to take a chip with more memory."""
    needed = least.needed_bytes
    if problem.memory_bytes is not None and needed > problem.memory_bytes:
        return f"a --chip with {format_bytes(needed)} per device (`plimsoll chips`)"
    of_host = ""
    if least.host is not None and not least.host.fits:
        of_host = f" --host-memory {format_budget(least.host.predicted_peak_bytes)}"
    return f"--memory {format_budget(needed)}{of_host}"


def _advice(problem: Problem, static: Static, least: Priced, would_fit: WouldFit) -> list[str]:
    """Returns further changes that would help, as advice to the user."""
    over = least.ledger.needed_bytes - problem.budget_bytes
    parts = least.ledger.components
    hints = []

    # Advice: a trial process, after which a plan keeps fewer bytes free.
    tried_fits = TRIED.needed_bytes(least.ledger.predicted_peak_bytes) <= problem.budget_bytes
    if problem.prepares != "try" and least.ledger.spare_bytes and tried_fits:
        hints.append(f"--measure or `train`, which try the plan and then keep {format_bytes(TRIED.least_bytes)} free")

    # Advice: fewer settings by the user, or looser numerics.
    if problem.pinned_by is not None:
        hints.append(f"leave out {problem.pinned_by}, to search for a plan that fits")
    elif problem.pins and would_fit(pins={}):
        hints.append("leave out " + ", ".join(LEVERS[name].flag for name in sorted(problem.pins)))
    hints += [f"--numerics {numerics}" for numerics in _further_numerics(problem) if would_fit(numerics=numerics)]

    # Advice: smaller data, sequences or models.
    if problem.data_advice and parts.get("data", 0) > over:
        hints.append(problem.data_advice)
    if problem.rate_unit == "tokens" and parts.get(STEP, 0) > over:
        hints.append("a shorter --seq-len")
    if static.state_bytes > over:
        share = 1 - over / static.state_bytes
        hints.append(f"a model of {static.parameters * share:,.0f} parameters or fewer")
    return hints


def _further_numerics(problem: Problem) -> list[str]:
    """Returns the values of --numerics (exact, mixed, compressed) that allow this recipe further memory settings."""
    supported = {
        lever.touches for lever in LEVERS.values() for support in lever.supports if support.name in problem.supported
    }
    names: list[str] = list(CLASSES)
    return [numerics for numerics in names[names.index(problem.numerics) + 1 :] if numerics in supported]
