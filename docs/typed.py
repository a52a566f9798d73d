"""Finds figures in tables of the pages that no result file backs: `python docs/typed.py`.

A number with a unit, in the row of a table, has to come from a result file or from the code, by a block of cog
(docs/figures.py). What cannot, because the machine is gone or someone else measured it, stands under a comment that
says so: `<!-- typed: of a card that was lent on 2026-11-23 -->`. What is in `backticks` is what a user types. The log
is a record and is left alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNITS = r"[KMGT]i?B|ms|us|s|h|min|minutes|seconds|hours|%|(?:tokens|examples|windows|steps)/s"
FIGURE = re.compile(rf"\d[\d.,]*\s?(?:{UNITS})(?![\w])")
TYPED = re.compile(r"<!-- typed: \S.* -->")


def typed(text: str) -> Iterator[tuple[int, str]]:
    """Yields number and text of the rows with a figure that was typed."""
    made = excused = False
    for number, line in enumerate(text.splitlines(), 1):
        made = (made or "[[[cog" in line) and "[[[end]]]" not in line
        if TYPED.fullmatch(line):
            excused = True
        elif not line.startswith("|"):
            excused = excused and not line.strip()  # an empty line may stand between the comment and the table
        elif not made and not excused and FIGURE.search(re.sub(r"`[^`]*`", "", line)):
            yield number, line


def main() -> int:
    pages = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md")]
    found = [(page, *row) for page in pages for row in typed(page.read_text("utf-8"))]
    for page, number, line in found:
        print(f"{page.relative_to(ROOT)}:{number}: {line[:120]}")
    if found:
        print(f"{len(found)} rows have a figure that no result file backs (docs/typed.py says what to do)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
