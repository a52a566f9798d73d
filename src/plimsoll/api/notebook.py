"""Plans as a prompt or a notebook shows them, and whether this process is a notebook's kernel."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from plimsoll.planned import Planned


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownPlan(Planned):
    """A plan that a prompt and a notebook show as a table."""

    def __repr__(self) -> str:
        from plimsoll.report.tables import plan_table

        return plan_table(self)


def is_here() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
