"""The plimsoll commands that stand on pages: in code blocks, and in backticks in prose."""

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = {ROOT / "docs" / name for name in ("results.md", "options.md", "all-levers.md")}
"""Pages that programs write: their commands belong to a commit, or name any recipe."""
PAGES = [*sorted(set((ROOT / "docs").glob("*.md")) - WRITTEN), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """Returns the words after `plimsoll` of each command of a page, those of code blocks first."""
    text = page.read_text("utf-8")
    lines = []
    for block in BLOCK.findall(text):
        lines += typed_lines(block.replace("\\\n", " ").splitlines())
    lines += re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    words = [shlex.split(line, comments=True) for line in lines if line.lstrip().startswith("plimsoll ")]
    return [before_redirection(rest) for _, *rest in words]


def before_redirection(words: Sequence[str]) -> list[str]:
    """Returns the words of a command without `> FILE`."""
    return list(takewhile(lambda word: word != ">", words))


def typed_lines(block: Sequence[str]) -> Sequence[str]:
    """Returns the lines after a `$`. In a block without one, all lines were typed."""
    lines = [line.removeprefix("$ ") for line in block if line.startswith("$ ")]
    return lines or block
