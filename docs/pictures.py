"""Pictures of results for pages: `python docs/pictures.py` writes them as SVG, with --check it fails where one differs.

`make figures` and `make docs` call it. A picture follows the reader's light or dark setting, as reports do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from figures import MIB, measured_rungs
from plimsoll.report.page.markup import Markup, element

from plimsoll.report.page.palette import DARK, LIGHT, variables

FOLDER = Path(__file__).with_name("pictures")
LADDERS = ("longcontext-nano",)

ROW, TOP, LEFT, WIDE, WIDTH = 26, 46, 390, 390, 990
"""Height of a row, of what is above the rows, where bars begin, the longest one, and the whole, in pixels."""
STYLE = f"""
svg {{ {variables(LIGHT)} background: var(--page); }}
@media (prefers-color-scheme: dark) {{ svg {{ {variables(DARK)} }} }}
text {{ font: 13px system-ui, sans-serif; fill: var(--ink); }}
.quiet {{ fill: var(--quiet); }} .name {{ text-anchor: end; }}
.measured {{ fill: var(--one); }} .predicted {{ fill: none; stroke: var(--two); stroke-width: 2; }}
"""


def ladder(name: str) -> str:
    """Returns a picture of a ladder: for each lever a bar of the bytes that were measured, and what was predicted."""
    rungs = measured_rungs(name)
    scale = WIDE / max(max(rung["measured_peak_bytes"], rung["predicted_peak_bytes"]) for rung in rungs)
    rows = [part for at, rung in enumerate(rungs) for part in _row(rung, TOP + ROW * at, scale)]
    height = TOP + ROW * len(rungs) + 8
    drawn = element(
        "svg",
        element("style", Markup(STYLE)),
        *_legend(),
        *rows,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label="Peak bytes of a training run, predicted and measured, as memory levers are added one by one.",
    )
    return drawn + "\n"


def _row(rung: dict[str, float], top: int, scale: float) -> list[Markup]:
    measured, predicted = rung["measured_peak_bytes"], rung["predicted_peak_bytes"]
    end = LEFT + scale * max(measured, predicted)
    words = f"{measured / MIB:,.0f} MiB, predicted {predicted / MIB:,.0f}"
    return [
        element("text", rung["words"], x=LEFT - 10, y=top + 14, class_="name"),
        element("rect", x=LEFT, y=top + 4, width=round(scale * measured, 1), height=12, class_="measured"),
        element("rect", x=LEFT, y=top + 1, width=round(scale * predicted, 1), height=18, class_="predicted"),
        element("text", words, x=round(end + 8, 1), y=top + 14, class_="quiet"),
    ]


def _legend() -> list[Markup]:
    second = LEFT + 220
    return [
        element("text", "each row adds a lever to those above it", x=LEFT - 10, y=25, class_="name quiet"),
        element("rect", x=LEFT, y=15, width=22, height=12, class_="measured"),
        element("text", "peak memory, measured", x=LEFT + 30, y=25),
        element("rect", x=second, y=12, width=22, height=18, class_="predicted"),
        element("text", "predicted before it ran", x=second + 30, y=25),
    ]


def pictures() -> dict[Path, str]:
    """Returns all pictures by their files."""
    return {FOLDER / f"ladder-{name}.svg": ladder(name) for name in LADDERS}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--check", action="store_true")
    check = options.parse_args().check
    for path, drawn in pictures().items():
        if check and (not path.exists() or path.read_text("utf-8") != drawn):
            sys.exit(f"{path.name} is not what its result file says: `make figures` draws it anew")
        if not check:
            path.write_text(drawn, "utf-8")


if __name__ == "__main__":
    main()
