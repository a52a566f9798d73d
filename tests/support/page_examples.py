"""Runs as the page gets them, small enough to check by eye."""

import math

from plimsoll.report.page.recorded import Recorded, columns_of
from plimsoll.units import MIB
from report_examples import LEDGER, PLANNED


def rows(steps=40, *, every=1, **changed):
    """Of a loss that falls, with an evaluation halfway and at the end; `changed` names values by step."""
    for step in range(every, steps + 1, every):
        yield {
            "step": step,
            "loss": 4 - 3 * step / steps,
            "step_seconds": 0.5,
            "data_seconds": 0.01,
            "elapsed_seconds": 0.6 * step,
            "tokens_per_second": 1000.0 + step,
            "resident_bytes": 300 * MIB,
            "peak_resident_bytes": 310 * MIB,
            **{name: values[step] for name, values in changed.items() if step in values},
        }
        if step in (steps // 2, steps):
            yield {"step": step, "validation_loss": 4 - 2 * step / steps, "elapsed_seconds": 0.6 * step}


def run(**changes):
    known = {
        "name": "stories",
        "path": "/runs/stories",
        "state": "finished",
        "recipe": {"kind": "stories", "fields": {"seed": 42}},
        "planned": PLANNED.to_dict(),
        "data": {"steps": 40, "steps_per_epoch": None, "facts": {"description": "12 documents"}},
        "ledger": LEDGER,
        "sessions": ({"plimsoll": "0.1.0", "commit": "0123abc", "jax": "0.10.2", "started": "2026-01-01 00:00:00Z"},),
        "columns": columns_of(rows()),
        "continue_command": "plimsoll train stories --run runs/stories",
        "repeat_command": "plimsoll train stories --plan runs/stories/plan.json --run runs/stories-again",
        "learning_rate": ([1, 20, 40], [0.0, 1e-3, 1e-4]),
    }
    return Recorded(**known | changes)


NAN = math.nan
