"""Finds figures in tables and fenced blocks of the pages that no result file backs: `python docs/typed.py`.

Three things have to come from a result file or from the code, by a block of cog (docs/figures.py): in the row of a
table a number with a unit, which may stand in the head of its column or in the first cell of its row, and a cell of
nothing but numbers, one of them a decimal; in a fenced block a number with a unit and a space between, as commands
print it. What cannot come from there, because the machine is gone or someone else measured it, stands under a comment
that names its source, and the source is looked for:

    <!-- typed: log.md, "On a card" -->                     a heading of docs/log.md that exists, in quotes
    <!-- typed: the paper, https://arxiv.org/abs/... -->    an address
    <!-- typed: constants of planner/estimate.py -->        a file of the repository that exists
    <!-- typed: what the command said at 1a2b3c4d -->       a commit of the history, where git has it

What is in `backticks` is what a user types, and so is what stands behind ` # ` in a fenced block. Not looked at:
figures in sentences, whole numbers without a unit, and the log, which is a record.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNIT = (
    r"[KMGT]i?B(?:/s)?|kB(?:/s)?|ns|ms|us|µs|s|h|min|minutes|seconds|hours|days|%|percent|nats|[MGTP]?FLOPs?(?:/s)?"
    r"|(?:tokens|examples|windows|steps|updates|samples|images|rows)/s|bits a byte"
)
NUMBER = r"\d(?:[\d.,]*\d)?"
FIGURE = re.compile(rf"{NUMBER}\s?(?:[kMB]\s?)?(?:{UNIT}|times)(?!\w)|{NUMBER}\s?[x×](?!\s?\d)(?!\w)")
PRINTED = re.compile(rf"{NUMBER}\s(?:[kMB]\s)?(?:{UNIT})(?!\w)")
"""A figure as commands print it; what is typed has no space before its unit."""
BARE = re.compile(r"(?=.*(?<![\d.])\d+\.\d+(?![\d.]))[-+\d.,()\s]+")
"""A cell of nothing but numbers, one of them a decimal."""
HEAD = re.compile(rf"(?<![\w/'-])(?:{UNIT}|times)(?![\w/-])")
TYPED = re.compile(r"\s*<!-- typed: (.*\S) -->\s*")
RULE = re.compile(r"\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?\s*)?|\s*\|\s*:?-+:?\s*")
"""The line below the head of a table."""


def typed(
    text: str, *, headings: set[str] | None = None, commits: Collection[str] | None = None
) -> Iterator[tuple[int, str]]:
    """Yields number and text of the rows with a figure that was typed, and of comments that name no source.

    Of a fenced block the first line with a figure stands for all.

    Args:
        text: The page.
        headings: Headings of the log; by default those it has.
        commits: Commits of the history; None where nobody knows them: then each is taken for one.
    """
    headings = headings_of_log() if headings is None else headings
    made = excused = in_table = in_fence = False
    heads: list[str] = []
    lines = [line.removeprefix("> ") for line in text.splitlines()]
    for number, line in enumerate(lines, 1):
        made = (made or "[[[cog" in line) and "[[[end]]]" not in line
        if line.lstrip().startswith("```"):
            in_fence, excused = not in_fence, excused and not in_fence
            continue
        if in_fence:
            if not made and not excused and PRINTED.search(line.partition(" # ")[0]):
                excused = True
                yield number, line
            continue
        begins = number < len(lines) and "|" in line and RULE.fullmatch(lines[number]) is not None
        in_table = begins or (in_table and "|" in line) or line.lstrip(" >").startswith(("|", "<td", "<tr"))
        if (comment := TYPED.fullmatch(line)) is not None:
            excused = names_source(comment[1], headings, commits)
            if not excused:
                yield number, line
        elif not in_table:
            excused, heads = excused and not line.strip(), []  # an empty line may stand between comment and table
        elif begins:
            heads = _cells(line)
        elif not made and not excused and _has_figure(line, heads):
            yield number, line


def names_source(why: str, headings: set[str], commits: Collection[str] | None = None) -> bool:
    """Returns whether a comment names a heading of the log, an address, a file of the repository, or a commit."""
    if any(quoted in headings for quoted in re.findall(r'"([^"]+)"', why)) or re.search(r"https?://\S+\.\S+", why):
        return True
    if at := re.search(r"\bat ([0-9a-f]{7,40})\b", why):
        return commits is None or any(commit.startswith(at[1]) for commit in commits)
    files = re.findall(r"[\w./-]*\w\.(?:py|toml|json)\b", why)
    return any((folder / name).is_file() for name in files for folder in (ROOT, ROOT / "src/plimsoll", ROOT / "docs"))


def headings_of_log() -> set[str]:
    """Returns the headings of docs/log.md, without their marks."""
    return set(re.findall(r"^#+ (.*\S)\s*$", (ROOT / "docs/log.md").read_text("utf-8"), re.MULTILINE))


def _has_figure(row: str, heads: list[str]) -> bool:
    cells = _cells(row)
    units = [HEAD.search(head) is not None for head in heads] + [False] * len(cells)
    if HEAD.search(cells[0]):
        units[1:] = [True] * (len(units) - 1)
    return any(
        FIGURE.search(cell) or BARE.fullmatch(cell) or (in_unit and re.search(r"(?<![\w.-])\d", cell))
        for cell, in_unit in zip(cells, units, strict=False)
    )


def _cells(row: str) -> list[str]:
    """Returns the cells of a row without what is in backticks, and without the marks of bold text and links."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)|[*_\[]", "", row).replace("&nbsp;", " ").strip()
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", plain.removeprefix("|").removesuffix("|"))]


def main() -> int:
    from keep import history  # beside this file

    history_here = history()
    commits = None if isinstance(history_here, str) else history_here
    if commits is None:
        print(f"commits that comments name were not looked for: {history_here}")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md")
    found = [(page, *row) for page in pages for row in typed(page.read_text("utf-8"), commits=commits)]
    for page, number, line in found:
        print(f"{page.relative_to(ROOT)}:{number}: {line[:120]}")
    if found:
        print(f"{len(found)} lines have a figure that no result file backs, or name no source: see docs/typed.py")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
