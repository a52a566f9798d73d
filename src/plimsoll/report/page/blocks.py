"""Parts of a page as data, and the templates that draw them: `parts.html.j2` has a macro for each kind of block.

A page is one file without scripts. Its Content-Security-Policy forbids the browser to fetch anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from plimsoll.report.page.palette import DARK, LIGHT

MOST_TEXT = 4000
"""Characters of a text from outside, which cannot make a page arbitrarily large."""
NOT_ALLOWED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that no HTML document may hold."""


class Block:
    """Part of a page. A block that is empty is left out."""

    macro: ClassVar[str]

    @property
    def is_empty(self) -> bool:
        return False


Section = tuple[str, Sequence[Block]]
"""Heading of a part of the page, and what stands in it."""


@dataclass(frozen=True)
class Text(Block):
    """Paragraph."""

    macro = "paragraph"
    text: str
    style: str = ""


@dataclass(frozen=True)
class Heading(Block):
    """Heading within a section."""

    macro = "heading"
    text: str


@dataclass(frozen=True, kw_only=True)
class Items(Block):
    """List of sentences with a heading."""

    macro = "items"
    title: str
    items: Sequence[str]

    @property
    def is_empty(self) -> bool:
        return not self.items


@dataclass(frozen=True, kw_only=True)
class Rows(Block):
    """Names with their texts."""

    macro = "rows"
    rows: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Command(Block):
    """Command that a reader can copy."""

    macro = "command"
    title: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Table(Block):
    """Table in a region that scrolls by itself, so that it does not widen the page."""

    macro = "table"
    title: str
    """Name of the region for a screen reader."""
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    has_names: bool = True
    """Whether the first cell of a row is its name."""
    words: Collection[int] = ()
    """Numbers of the columns whose text may wrap."""
    bars: Sequence[Mapping[str, float]] = ()
    """Percentages, `outline` and `filled`, of a bar behind each row that has one."""
    has_total: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.rows


@dataclass(frozen=True)
class Budget(Block):
    """Predicted peak and budget as a bar to scale."""

    macro = "budget"
    peak: str
    budget: str
    peak_percent: float
    budget_percent: float


@dataclass(frozen=True)
class Exhibit(Block):
    """Texts or grids that a model has made, as `exhibits.py` describes them."""

    macro = "exhibit"
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Folded(Block):
    """Blocks that a reader unfolds."""

    macro = "folded"
    title: str
    blocks: Sequence[Block]

    @property
    def is_empty(self) -> bool:
        return all(block.is_empty for block in self.blocks)


@dataclass(frozen=True)
class Columns(Block):
    """Groups of blocks, as many side by side as there is room for."""

    macro = "side_by_side"
    groups: Sequence[Sequence[Block]]
    style: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.shown

    @property
    def shown(self) -> list[Sequence[Block]]:
        """The groups of which something is to be shown."""
        return [group for group in self.groups if any(not block.is_empty for block in group)]


def page(
    *, title: str, verdict: Sequence[Block], facts: Sequence[tuple[str, str]], sections: Sequence[Section], footer: str
) -> str:
    """Returns a whole document.

    Args:
        title: Heading and name of the page.
        verdict: What the reader wants to know first.
        facts: Names and values of the figures at the top.
        sections: Parts of the page, in order. Those that are empty are left out.
        footer: Last line: when and by which version the page was made.
    """
    shown = [(heading, blocks) for heading, blocks in sections if any(not block.is_empty for block in blocks)]
    return _rendered("page.html.j2", title=title, verdict=verdict, facts=facts, sections=shown, footer=footer)


def fragment(title: str, blocks: Sequence[Block]) -> str:
    """Returns blocks as HTML for the output of a notebook, with a style that touches nothing else there."""
    return _rendered("notebook.html.j2", title=title, blocks=blocks)


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_allowed,
    )
    environment.globals |= {"light": LIGHT, "dark": DARK}
    return environment.get_template(template).render(values)


def _allowed(value: Any) -> Any:
    """Returns a text as it may stand in a page. What is HTML already stays as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    text = NOT_ALLOWED.sub("\N{REPLACEMENT CHARACTER}", value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\N{HORIZONTAL ELLIPSIS}"
