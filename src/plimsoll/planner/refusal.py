"""No plan fits: the smallest that was found, what it is made of, and what would help."""

from __future__ import annotations

from collections.abc import Callable

from plimsoll.errors import BudgetError
from plimsoll.levers.lever import CLASSES
from plimsoll.levers.registry import LEVERS, in_words
from plimsoll.planned import HostLedger, Ledger
from plimsoll.planner.evidence import Failure
from plimsoll.planner.explain import Priced
from plimsoll.planner.types import Problem, Static
from plimsoll.units import MIB, format_budget, format_bytes

WouldFit = Callable[..., bool]
"""Whether a plan of this problem fits once some of its fields are changed."""


def refusal(
    problem: Problem,
    static: Static,
    least: Priced | None,
    failures: list[Failure],
    would_fit: WouldFit,
) -> BudgetError:
    """Returns the refusal.

    Args:
        problem: What was planned.
        static: Bytes of its state.
        least: The smallest plan; None where nothing compiles.
        failures: Why what did not compile did not.
        would_fit: Looks for the plan of the problem with other fields: no lever is advised that would not help.
    """
    if least is None and failures and all(failure.verb == "time" for failure in failures):
        return BudgetError(
            f"no plan of {problem.recipe} runs on {problem.chip}: of {len(failures)} that compile, each failed when it"
            f" was timed (the first: {failures[0].why}). `plimsoll doctor` says whether the device can be used",
            budget_bytes=problem.budget_bytes,
            floor_bytes=None,
        )
    if least is None:
        reasons = "; ".join(failure.why for failure in failures)
        return BudgetError(
            f"{problem.recipe} does not compile for {problem.chip}: {reasons or 'no plan to try'}",
            budget_bytes=problem.budget_bytes,
            floor_bytes=None,
        )

    # The host is too small beside a device that is not.
    host = least.ledger.host
    needed = least.ledger.needed_bytes
    if host is not None and not host.fits and needed <= problem.budget_bytes:
        assert host.budget_bytes is not None
        return BudgetError(
            f"no plan for {problem.recipe} fits in {format_bytes(host.budget_bytes)} of a host's memory beside"
            f" {problem.chip} (--host-memory)\n"
            f"  smallest found: {format_bytes(host.needed_bytes)} = {_components_text(host)}{_kept_free(host)}\n"
            f"  you could: --host-memory {format_budget(host.needed_bytes)}",
            budget_bytes=host.budget_bytes,
            floor_bytes=host.needed_bytes,
        )

    # The device is too small.
    found = "found" if least.ledger.source == "compiled" else "estimated, without a compiler"
    return BudgetError(
        f"no plan for {problem.recipe} fits in {format_bytes(problem.budget_bytes)} on {problem.chip}\n"
        f"  smallest {found}: {format_bytes(needed)} = {_components_text(least.ledger)}{_kept_free(least.ledger)}\n"
        f"  settings of that plan: micro-batch {least.plan.micro_batch}, {in_words(least.plan.levers)}\n"
        f"  you could: {', or '.join([_memory(problem, least.ledger), *_advice(problem, static, least, would_fit)])}",
        budget_bytes=problem.budget_bytes,
        floor_bytes=needed,
    )


def _memory(problem: Problem, least: Ledger) -> str:
    """Returns the budgets in which the smallest plan fits; where a device has less, that another chip is needed."""
    needed = least.needed_bytes
    if problem.memory_bytes is not None and needed > problem.memory_bytes:
        return f"a --chip with {format_bytes(needed)} per device (`plimsoll chips`)"
    of_host = ""
    if least.host is not None and not least.host.fits:
        of_host = f" --host-memory {format_budget(least.host.predicted_peak_bytes)}"
    return f"--memory {format_budget(needed)}{of_host}"


def _advice(problem: Problem, static: Static, least: Priced, would_fit: WouldFit) -> list[str]:
    """Returns changes that would help, too."""
    over = least.ledger.needed_bytes - problem.budget_bytes
    hints = []
    if problem.pinned_by is not None:
        hints.append(f"leave out {problem.pinned_by}, and a plan that fits is searched for")
    elif problem.pins and would_fit(pins={}):
        hints.append("leave out " + ", ".join(f"--{name.replace('_', '-')}" for name in sorted(problem.pins)))
    for numerics in CLASSES[CLASSES.index(problem.numerics) + 1 :]:  # type: ignore[arg-type]
        names = {support.name for lever in LEVERS.values() if lever.touches == numerics for support in lever.supports}
        if names & {*problem.supported} and would_fit(numerics=numerics):
            hints.append(f"--numerics {numerics}")
    if problem.data_advice and least.ledger.components.get("data", 0) > over:
        hints.append(problem.data_advice)
    if problem.rate_unit == "tokens" and least.ledger.components.get("step temporaries", 0) > over:
        hints.append("a shorter --seq-len")
    if static.state_bytes > over:
        saved = 1 - over / static.state_bytes
        hints.append(f"a model of {static.parameters * saved:,.0f} parameters or fewer")
    return hints


def _components_text(ledger: Ledger | HostLedger) -> str:
    parts = sorted(ledger.components.items(), key=lambda item: -item[1])
    named = " + ".join(f"{name} {size / MIB:.0f}" for name, size in parts if size >= MIB)
    return f"{named} (MiB), in the phase '{ledger.phase}'"


def _kept_free(ledger: Ledger | HostLedger) -> str:
    """Returns what stays free beside the components, as the end of a phrase."""
    return f" and {format_bytes(ledger.spare_bytes)} kept free" if ledger.spare_bytes else ""
