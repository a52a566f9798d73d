"""Runs as the page gets them, small enough to check by eye.

`python tests/support/page_examples.py` writes the words of two pages anew: look at the difference.
"""

import math
from dataclasses import replace
from pathlib import Path

from plimsoll.planned import Buffer, HostLedger, Point
from plimsoll.report.page.plans import plan_page
from plimsoll.report.page.recorded import Recorded, columns_of
from plimsoll.report.page.run import run_page
from plimsoll.units import GIB, MIB
from reading_pages import lines_of
from report_examples import LEDGER, PLAN, PLANNED

GOLDEN = Path(__file__).parents[1] / "report/golden"


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
        "planned": PLANNED,
        "ledger": LEDGER,
        "steps": 40,
        "data": "12 documents",
        "sessions": ({"plimsoll": "0.1.0", "commit": "0123abc", "jax": "0.10.2", "started": "2026-01-01 00:00:00Z"},),
        "columns": columns_of(rows()),
        "commands": {"Continues it": "plimsoll train stories --run runs/stories"},
        "learning_rate": ([1, 20, 40], [0.0, 1e-3, 1e-4]),
    }
    return Recorded(**known | changes)


NAN = math.nan

EXHIBITS = (
    {"kind": "texts", "title": "What it writes", "caption": "seeds", "items": [{"prompt": "Once", "text": " upon"}]},
    {
        "kind": "grids",
        "title": "What it solves",
        "caption": "the first",
        "items": [{"name": "test:0", "before": ["1 .", ". 2"], "after": ["1 2", "2 1"], "said": ["valid"]}],
    },
    {
        "kind": "curves",
        "title": "Loss by position",
        "caption": "falls",
        "x_label": "position",
        "y_label": "nats",
        "x": [1, 2, 4],
        "y": {"held out": [3.0, 2.0, 1.5]},
        "logarithmic": True,
    },
    {
        "kind": "table",
        "title": "Systems",
        "caption": "best first",
        "header": ["a", "b"],
        "rows": [[f"system {number}", "0.5"] for number in range(25)],
    },
)


def full_plan():
    """A plan with everything that a page can say about one."""
    points = [(900 * MIB, 0.75, False), (1536 * MIB, 0.5, True), (3 * GIB, 0.4, True)]
    frontier = [
        Point(plan=PLAN, needed_bytes=size, step_seconds=seconds, compiled=compiled, chosen=seconds == 0.5)
        for size, seconds, compiled in points
    ]
    host = HostLedger(budget_bytes=None, components={"process": GIB}, phase="train")
    return replace(
        PLANNED,
        ledger=replace(PLANNED.ledger, host=host),
        left_out=("micro-batch 2: no config",),
        frontier=tuple(frontier),
        largest_buffers=(Buffer(bytes=MIB, shape="f32[8]", what="matmul", place="model.py:3"),),
    )


def full_run():
    """A run with everything that a page can say about one."""
    values = {
        "loss": {9: NAN, 30: NAN},
        "step_seconds": {17: 4.0},
        "accuracy": {step: step / 40 for step in range(1, 41)},
    }
    return run(
        planned=full_plan(),
        exhibits=EXHIBITS,
        left_out=["what it drives: no file"],
        columns=columns_of(rows(**values)),
        commands={"Uses it": "plimsoll sample runs/stories\nplimsoll export runs/stories"},
        chosen={"width": 64},
    )


PAGES = {
    "page-run.txt": lambda: html(run_page(full_run())),
    "page-plan.txt": lambda: html(plan_page(full_plan())),
}


def html(page):
    return page.html(footer="made by a test")


if __name__ == "__main__":
    for page_name, draw_page in PAGES.items():
        (GOLDEN / page_name).write_text("\n".join(lines_of(draw_page())) + "\n")
