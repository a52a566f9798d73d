"""What the rows of prediction.py say together: errors, budgets held, refusals, use of the budget, the worst explained.

A row is a JSON object. `outcome`: `ran`; `refused` (then the recipe ran with the memory that the refusal advised);
`failed`. Bytes: `budget` as drawn, `memory` as given to the runs, `predicted`, `peaks` of each run, `floor`,
`unconstrained` and `unconstrained_waiting`: the fastest plan without a budget, saving beside training or between steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MIB = 2**20
MEDIAN_GOAL = 0.01, 4 * MIB
WORST_GOAL = 0.03, 16 * MIB
USED_GOAL = 0.85
EXPLAINED = 10

Row = Mapping[str, Any]


def measured(row: Row) -> int:
    """The largest of its peaks."""
    return max(row["peaks"])


def error(row: Row) -> int:
    """Predicted minus measured: negative is the dangerous side."""
    return row["predicted"] - measured(row)


def allowed(row: Row, goal: tuple[float, int]) -> float:
    share, least = goal
    return max(share * measured(row), least)


def summary(rows: Sequence[Row]) -> str:
    seen = [row for row in rows if row.get("peaks")]
    commits = sorted({row["commit"] for row in rows if row.get("commit")})
    lines = [f"{len(rows)} configurations, {len(seen)} of them measured; commit {', '.join(commits) or 'unknown'}"]
    if seen:
        lines += [*_errors(seen), *_budgets(seen)]
    lines += [*_refusals(rows), *_use(rows), *_failures(rows)]
    return "\n".join(lines)


def _errors(seen: Sequence[Row]) -> list[str]:
    sizes = [abs(error(row)) for row in seen]
    shares = [size / measured(row) for size, row in zip(sizes, seen, strict=True)]
    of_goal = [size / allowed(row, MEDIAN_GOAL) for size, row in zip(sizes, seen, strict=True)]
    beyond = [row for row in seen if abs(error(row)) > allowed(row, WORST_GOAL)]
    under = [row for row in seen if error(row) < 0]
    badly = [row for row in under if -error(row) > allowed(row, MEDIAN_GOAL)]
    return [
        f"median error {statistics.median(sizes) / MIB:.1f} MiB, {statistics.median(shares):.1%};"
        f" {statistics.median(of_goal):.2f} of the larger of 1 % and 4 MiB",
        f"worst error {max(sizes) / MIB:.1f} MiB, {max(shares):.1%}; beyond the larger of 3 % and 16 MiB:"
        f" {_of(beyond, seen)}",
        f"under-predicted by more than the larger of 1 % and 4 MiB: {_of(badly, seen)}; at all: {_of(under, seen)}",
    ]


def _budgets(seen: Sequence[Row]) -> list[str]:
    over = [row for row in seen if measured(row) > row["memory"]]
    return [f"over the budget: {_of(over, seen)}"]


def _refusals(rows: Sequence[Row]) -> list[str]:
    refused = [row for row in rows if row["outcome"] == "refused"]
    tried = [row for row in refused if row.get("peaks")]
    wrong = [row for row in tried if measured(row) <= row["budget"]]
    lines = [f"refused: {_of(refused, rows)}; wrongly (the smallest plan stayed under the budget): {_of(wrong, tried)}"]
    again = [row for row in refused if not row.get("peaks")]
    return lines + ([f"  the advised memory was not enough, or failed: {_numbers(again)}"] if again else [])


def _use(rows: Sequence[Row]) -> list[str]:
    ran = [row for row in rows if row["outcome"] == "ran" and "unconstrained" in row]
    words = {
        "unconstrained": "the fastest plan does not fit",
        "unconstrained_waiting": "nor does it saving between steps",
    }
    lines = []
    for name, what in words.items():
        bound = [row for row in ran if row[name] > row["budget"]]
        if bound:
            used = [measured(row) / row["budget"] for row in bound]
            enough = [row for row, share in zip(bound, used, strict=True) if share >= USED_GOAL]
            lines.append(
                f"where {what}: median {statistics.median(used):.0%} of the budget used, {USED_GOAL:.0%} or more in"
                f" {_of(enough, bound)}"
            )
    return lines


def _failures(rows: Sequence[Row]) -> list[str]:
    return [f"failed: {row['number']}: {row['said'][-200:]}" for row in rows if row["outcome"] == "failed"]


def worst(rows: Sequence[Row]) -> str:
    """The ten furthest off, with their components at the predicted peak and the phases that raised the measured one."""
    seen = [row for row in rows if row.get("peaks")]
    seen.sort(key=lambda row: -abs(error(row)) / allowed(row, WORST_GOAL))
    return "\n".join(text for row in seen[:EXPLAINED] for text in (line(row), *_explained(row)))


def _explained(row: Row) -> list[str]:
    lines = [
        f"    {row.get('words', 'its words name a path, and were not kept')}",
        f"    memory {row['memory'] / MIB:.0f} MiB, phase {row['phase']}; predicted/measured",
    ]
    for name, both in row["components"].items():
        lines.append(f"      {name:24} {_mib(both['predicted'])} / {_mib(both['measured'])}")
    for name, size in row["phases"].items():
        lines.append(f"      phase {name:18} {_mib(size)} / {_mib(row['measured_phases'].get(name))}")
    return lines


def line(row: Row) -> str:
    """A row of the table."""
    start = f"{row['number']:>4} {row['label']:34}"
    if not row.get("peaks"):
        return f"{start} {row['outcome']}: {row.get('said', '')[-120:]}"
    predicted, peak = row["predicted"] / MIB, measured(row) / MIB
    spread = (measured(row) - min(row["peaks"])) / MIB
    marks = ["OVER THE BUDGET"] if measured(row) > row["memory"] else []
    if row["outcome"] == "refused":
        marks.append("WRONGLY REFUSED" if measured(row) <= row["budget"] else "refused, run as advised")
    return (
        f"{start} {row['plan']:26} {row['phase']:8} budget {row['budget'] / MIB:6.0f} predicted {predicted:7.1f}"
        f" measured {peak:7.1f} (spread {spread:4.1f}) error {error(row) / MIB:+6.1f} MiB"
        f" {error(row) / measured(row):+6.1%}  {', '.join(marks)}"
    ).rstrip()


def _of(some: Sequence[Row], all_: Sequence[Row]) -> str:
    text = f"{len(some)} of {len(all_)}" + (f" ({len(some) / len(all_):.0%})" if all_ else "")
    return text + (f": {_numbers(some)}" if 0 < len(some) <= EXPLAINED else "")


def _numbers(rows: Sequence[Row]) -> str:
    return "number " + ", ".join(str(row["number"]) for row in rows)


def _mib(size: int | None) -> str:
    return "      -" if size is None else f"{size / MIB:7.1f}"
