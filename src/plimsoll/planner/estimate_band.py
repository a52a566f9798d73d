"""How far a step that was only traced (liveness.py) is from the compilers' own bytes: what an estimated plan must say.

`benchmarks/estimated.py` holds random plans against the compilers; docs/chips.md lists them one by one. Nothing here
imports JAX.
"""

from __future__ import annotations

from typing import Any

from plimsoll.planned import Ledger

PLANS = 24
"""Held against the compilers: 10 for an h200, 8 for a tpu-v5e-8, 6 for a tpu-v4-64 (2026-11-21, jax 0.10.2)."""
ESTIMATED_OVER_COMPILED = (0.71, 1.42)
"""The lowest and the highest of them: what a step needs beyond its state, as estimated, over what the compiler said."""
TRACED = "temporaries"
"""Components of a ledger that end so are counted in a traced function; all others are exact, or measured."""


def estimate_band(ledger: Ledger) -> dict[str, Any] | None:
    """Of an estimated ledger, where the compiler's bytes may lie; None of one that was compiled.

    `lowest` and `highest` are shares of the temporaries, to be added to them; `lowest_peak_bytes` and
    `highest_peak_bytes` follow, and the highest may be over the budget.
    """
    if ledger.source != "estimated":
        return None
    least, most = ESTIMATED_OVER_COMPILED
    lowest, highest = 1 / most, 1 / least
    peak = ledger.predicted_peak_bytes
    traced = sum(size for name, size in ledger.predicted.items() if name.endswith(TRACED))
    return {
        "lowest": round(lowest - 1, 2),
        "highest": round(highest - 1, 2),
        "plans": PLANS,
        "lowest_peak_bytes": round(peak - traced + lowest * traced),
        "highest_peak_bytes": round(peak - traced + highest * traced),
    }
